package problem

import (
	"slices"
	"strings"
	"time"
)

// Kind is a kind of problem. docs/night.md has a section for each.
type Kind struct {
	// ID is the name in the status, the log and the metric.
	ID       string
	Severity Severity // unless a Problem has another one
	// Meaning is what the operator loses, in one sentence.
	Meaning string
	// Remedy is a command or what to do. MAP, PEER and SUBJECT stand for those of the problem.
	Remedy string
	// Planned is the time after which a Notice becomes a Warning; zero: never.
	Planned time.Duration
	// LogAfter is the time after which the problem is logged. Restarts and changes in flight last shorter.
	LogAfter time.Duration
}

// Documentation returns the section about problems of this kind.
func (k *Kind) Documentation() string { return "docs/night.md#" + k.ID }

// remedy returns the remedy of a problem of this kind.
func (k *Kind) remedy(p *Problem) string {
	return strings.NewReplacer("MAP", orName(p.Map, "MAP"), "PEER", orName(p.Peer, "PEER"), "SUBJECT", orName(p.Subject, "SUBJECT")).Replace(k.Remedy)
}

func orName(name, placeholder string) string {
	if name == "" {
		return placeholder
	}
	return name
}

// Of returns the kind with an ID. An ID that does not exist is a kind without a section.
func Of(id string) *Kind {
	if i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.ID == id }); i >= 0 {
		return &Kinds[i]
	}
	return &Kind{ID: id, Severity: Warning}
}

// short is the time that restarts of one daemon or load balancer, and elections of roles, take.
const short = 10 * time.Second

// plannedTime is the longest time of a planned operation.
const plannedTime = time.Hour

// Kinds are the kinds of problems, in the order of the documentation.
var Kinds = []Kind{
	// The node.
	{ID: "redundancy", Severity: Critical, Meaning: "fewer peers than expected can take over from this node", Remedy: "find the reason in the text, on the peer that it names", Planned: plannedTime, LogAfter: short},
	{ID: "not-ready", Severity: Critical, Meaning: "traffic must not come to this node", Remedy: "find the reason in the text", LogAfter: short},
	{ID: "ready-unproven", Severity: Warning, Meaning: "this node takes traffic without proof that it holds all sessions", Remedy: "restore the streams to the peers in the text; on-ready-timeout: closed prevents this state"},
	{ID: "drained", Severity: Notice, Meaning: "this node is out of service", Remedy: "syncd drain --undo", Planned: plannedTime},
	{ID: "clock", Severity: Critical, Meaning: "nodes refuse the changes of nodes whose clocks are ahead", Remedy: "chronyc makestep, on the node whose clock is wrong"},
	{ID: "losses-open", Severity: Warning, Meaning: "peers may lack changes until a scan has found them", Remedy: "double buffer-size if events are still lost; raise scan-budget if not", LogAfter: short},
	{ID: "scans-paused", Severity: Warning, Meaning: "changes that no hook reports are not replicated, and losses are not repaired", Remedy: "syncd scans resume"},
	{ID: "state-not-saved", Severity: Warning, Meaning: "after a restart of syncd, ended sessions may come back from peers", Remedy: "df SUBJECT"},
	{ID: "state-not-read", Severity: Warning, Meaning: "a drain of this node has ended, and ended sessions may come back from peers", Remedy: "df SUBJECT, and drain the node again if it was drained; a restart of syncd ends the problem"},
	{ID: "settings-not-reloaded", Severity: Warning, Meaning: "the former settings stay in use, and a restart may fail", Remedy: "correct the setting that syncd check --config /etc/mapsync/syncd.yaml names, then syncd reload"},
	{ID: "restart-needed", Severity: Warning, Meaning: "changed settings are not in use", Remedy: "systemctl restart syncd"},
	{ID: "memory-corrupt", Severity: Critical, Meaning: "records in the memory of syncd were damaged, and peers repair them", Remedy: "syncd drain, then test the memory of the host; report it if the memory is good"},

	// Maps.
	{ID: "map-missing", Severity: Critical, Meaning: "the sessions of the map are not replicated", Remedy: "start the load balancer, or correct map: syncd maps lists the maps of this host", LogAfter: short},
	{ID: "bpf-file-system", Severity: Critical, Meaning: "the sessions of the map are not replicated", Remedy: "on the host: mount -t bpf bpf /sys/fs/bpf; in a container, also mount that directory of the host with mountPropagation: HostToContainer", LogAfter: short},
	{ID: "map-refused", Severity: Critical, Meaning: "the sessions of the map are not replicated", Remedy: "find the reason in the text; syncd check --config /etc/mapsync/syncd.yaml tries the settings"},
	{ID: "map-paused", Severity: Critical, Meaning: "a failover of this node or to it loses the changes since the pause", Remedy: "syncd resume MAP", Planned: plannedTime},
	{ID: "failed-writes", Severity: Critical, Meaning: "a failover to this node loses these entries", Remedy: "enlarge the map MAP of the load balancer", LogAfter: short},
	{ID: "map-too-small", Severity: Warning, Meaning: "a failover to this node loses entries of peers", Remedy: "enlarge the map MAP of the load balancer: docs/operations.md#size-of-lru-maps"},
	{ID: "map-cleared", Severity: Warning, Meaning: "a process has deleted the entries of the map, and syncd restores them until an operator decides", Remedy: "syncd clears release MAP, or syncd clears restore MAP"},
	{ID: "former-map-used", Severity: Critical, Meaning: "changes of a map that another one has replaced do not reach peers", Remedy: "restart the program or process in the text"},
	{ID: "former-maps-unknown", Severity: Warning, Meaning: "users of a former map would not be found", Remedy: "grant CAP_SYS_ADMIN to syncd"},
	{ID: "undetected-programs", Severity: Warning, Meaning: "writes of these programs reach peers only by scans", Remedy: "attach: fexit, if syncd check reports that it works"},
	{ID: "undetected-programs-unknown", Severity: Warning, Meaning: "programs whose writes only scans find would not be found", Remedy: "grant CAP_SYS_ADMIN to syncd"},
	{ID: "in-place-unavailable", Severity: Warning, Meaning: "changes in place reach peers only by scans", Remedy: "syncd check"},
	{ID: "metrics-unusable", Severity: Warning, Meaning: "counters of entries in the setting metrics do not count", Remedy: "correct metrics in the settings, then restart syncd"},
	{ID: "field-role", Severity: Warning, Meaning: "a field arrives at peers unchanged, where it has another meaning", Remedy: "syncd schema suggest MAP", LogAfter: short},
	{ID: "reference-unreadable", Severity: Critical, Meaning: "ids keep the meanings that they had: a failover may lose new entries", Remedy: "start the load balancer, or correct referenced-map: syncd maps lists the maps of this host", LogAfter: short},
	{ID: "drain-sums-missing", Severity: Warning, Meaning: "sums of drained entries are too low", Remedy: "without room: raise drain-sums-max-entries; calls missed: attach: fexit"},
	{ID: "unsent-entries", Severity: Warning, Meaning: "a failover loses these entries", Remedy: "syncd diff MAP"},
	{ID: "scan-failing", Severity: Warning, Meaning: "changes that no hook reports do not reach peers", Remedy: "follow the hint: journalctl -u syncd --grep 'scan failed'"},
	{ID: "scan-late", Severity: Warning, Meaning: "changes that no hook reports reach peers late", Remedy: "raise scan-budget"},
	{ID: "records-over-limit", Severity: Warning, Meaning: "a failover of the peer to this node loses these records", Remedy: "raise max-records-factor, or use maps of one size"},

	// Peers.
	{ID: "stream-missing", Severity: Critical, Meaning: "changes travel in one direction only, or not at all", Remedy: "open the port of grpc-listen on both nodes: nc -vz ADDRESS PORT", LogAfter: short},
	{ID: "peer-unreachable", Severity: Critical, Meaning: "the node does not replicate with this one: gossip reaches it, streams do not", Remedy: "on PEER: correct grpc-advertise, and open the port of grpc-listen", LogAfter: short},
	{ID: "peer-behind", Severity: Warning, Meaning: "a failover to the peer loses its missing changes", Remedy: "check the load of PEER and the network", LogAfter: short},
	{ID: "map-unserved", Severity: Critical, Meaning: "the map is not replicated with the peer", Remedy: "on PEER: syncd status --problems; if it has no problem of MAP, add MAP to map there", LogAfter: short},
	{ID: "map-differs", Severity: Warning, Meaning: "the peer's map may not hold what this one holds", Remedy: "create the maps with the same type, size and flags on all nodes"},
	{ID: "divergent", Severity: Critical, Meaning: "entries differ from those of the peer", Remedy: "syncd diff MAP --peer PEER", LogAfter: short},
	{ID: "comparison-impossible", Severity: Warning, Meaning: "missing entries would not be found", Remedy: "find the reason in the text", LogAfter: short},
	{ID: "false-digests", Severity: Critical, Meaning: "the peer lacks changes of other nodes, or is hostile", Remedy: "syncd diff MAP --peer PEER"},
	{ID: "not-held", Severity: Warning, Meaning: "a failover to the peer loses these entries", Remedy: "enlarge the map MAP on PEER; syncd diff MAP lists refused entries", LogAfter: short},
	{ID: "refused-entries", Severity: Warning, Meaning: "a failover to this node loses these entries of the peer", Remedy: "syncd diff MAP --peer PEER"},
	{ID: "peer-unsent-entries", Severity: Warning, Meaning: "a failover of the peer loses these entries", Remedy: "on PEER: syncd status --problems"},
	{ID: "version-skew", Severity: Notice, Meaning: "the nodes run different releases of syncd", Remedy: "finish the upgrade", Planned: 24 * time.Hour},

	// Membership and credentials.
	{ID: "gossip-unreachable", Severity: Critical, Meaning: "this node finds no peers: no node of join answers", Remedy: "start syncd on the nodes of join; if it runs there, correct join, and open the port of gossip-listen for TCP and UDP", LogAfter: short},
	{ID: "gossip-key-differs", Severity: Critical, Meaning: "this node and the sender do not find each other", Remedy: "use the same gossip-key-file on all nodes"},
	{ID: "gossip-invalid", Severity: Warning, Meaning: "another program, or another version of syncd, sends gossip to this node", Remedy: "stop the sender"},
	{ID: "name-conflict", Severity: Critical, Meaning: "two live nodes have one name, and only one of them takes part", Remedy: "give each node its own node-name"},
	{ID: "cluster-differs", Severity: Warning, Meaning: "nodes of another cluster try to join this one", Remedy: "correct join there, or cluster on one of the nodes"},
	{ID: "connection-refused", Severity: Critical, Meaning: "a node cannot replicate with this one", Remedy: "find the reason in the text"},
	{ID: "client-refused", Severity: Warning, Meaning: "a program without valid credentials has connected to grpc-listen, and was refused", Remedy: "correct the credentials of SUBJECT if it is a node; otherwise stop the program there, or block it in the firewall"},
	{ID: "stream-refused", Severity: Warning, Meaning: "a caller is not allowed what it requests", Remedy: "add its name to allowed-names or observers, then syncd reload"},
	{ID: "connections-limited", Severity: Warning, Meaning: "connections were ended by a limit", Remedy: "find the client in the text, and block it in the firewall"},
	{ID: "tls-files", Severity: Warning, Meaning: "a TLS file is about to be refused by peers, or is less secure than intended", Remedy: "replace the file in the text"},
	{ID: "tls-not-reloaded", Severity: Critical, Meaning: "the former certificate stays in use until it expires", Remedy: "correct the file in the text"},
	{ID: "records-rejected", Severity: Critical, Meaning: "a peer sends records that it is not allowed to send", Remedy: "use the same write-from on all nodes; otherwise revoke the certificate of PEER"},
}
