// Package peers manages cluster membership and authenticates peers.
//
// [Cluster] implements the membership. It gossips with the other nodes by hashicorp/memberlist. It
// returns the live nodes, their incarnations, and the addresses of their stream services.
// [Credentials] secures the streams with mutual TLS 1.3. The name in a certificate identifies a node.
//
// Most failures between two nodes are caused by a configuration that differs: another gossip key,
// another CA, or a duplicate node name. Each of these failures increments a counter. Each also
// produces one rate-limited log message with the cause, the peer, and the remedy.
package peers
