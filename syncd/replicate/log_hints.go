package replicate

import "log/slog"

// problemRefused makes a log line the problem of the same name in the list of the daemon.
var problemRefused = slog.String("problem", "stream-refused")

// The hints of several log lines.
const (
	hintLayout   = "use compatible layouts, and the same read-from on all nodes: see docs/schema.md"
	hintRefused  = "no pattern matches its certificate: add its name to allowed-names or observers, then syncd reload; no common version: upgrade syncd"
	hintVersions = "use the same version of syncd on both nodes; if the versions are equal, report it"
)
