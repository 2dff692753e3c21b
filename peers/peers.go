// Package peers knows who else is there and makes sure of it.
//
// [Cluster] is the membership: it gossips with the other nodes by
// hashicorp/memberlist, and tells which of them live, with which incarnation,
// and at which address their streams are served. [Credentials] secures those
// streams: mutual TLS 1.3 in which a certificate names its node.
//
// What goes wrong between two nodes is most often a configuration that differs:
// another gossip key, another CA, a name that is used twice. All of these end in
// one rate-limited message that names the cause, the other side, and the remedy,
// and in a counter.
package peers
