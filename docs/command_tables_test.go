package docs

import "strings"

// programs are the programs whose commands run.
var programs = []string{"syncd", "scripts/make-credentials", "openssl", "ls", "readlink", "sha256sum", "df", "grep", "ss"}

// programsNotRun lists the programs whose commands do not run, with the reason.
var programsNotRun = map[string]string{
	"systemctl":            "the daemon of the test is not a unit. deploy tests the unit",
	"systemd-sysusers":     "it changes the users of the machine",
	"journalctl":           "the daemon of the test is not a unit. TestRunbookTermsExist compares the searched texts with the code",
	"install":              "it changes the machine",
	"chown":                "it changes the machine",
	"chmod":                "it changes the machine",
	"kubectl":              "it needs a cluster of Kubernetes",
	"birdc":                "it needs a BGP daemon",
	"chronyc":              "it needs a daemon that sets the clock",
	"nc":                   "netcat is not installed on all machines",
	"apt-get":              "it installs packages",
	"curl":                 "it installs Go. TestPagesNameTheGoVersion compares the version",
	"ln":                   "it changes the machine",
	"make":                 "the targets are measurements, tests in virtual machines, or checks that CI runs itself",
	"go":                   "CI runs the tests and benchmarks of the packages",
	"bin/vmrun":            "it starts a virtual machine for a measurement",
	"bin/throughput":       "it is a measurement. The tests of bench/throughput run it with few entries",
	"scripts/install-deps": "it installs packages",
}

// notRun lists the commands of programs that run which do not run themselves, with the reason.
var notRun = map[string]string{
	"syncd clears release ct":                                     "there is no clear. TestProcedures runs it",
	"syncd clears restore ct":                                     "there is no clear. TestProcedures runs it",
	"syncd clears release MAP":                                    "there is no clear. TestProcedures runs it",
	"syncd clears restore MAP":                                    "there is no clear. TestProcedures runs it",
	"syncd check --config /etc/mapsync/syncd.yaml --as-unit":      "the node is not a unit. deploy tests it in one",
	"syncd profiles check loxilb":                                 "the host has no LoxiLB. syncd.TestProfilesCheck runs it",
	"syncd run":                                                   "the node runs already",
	"syncd run --config /etc/mapsync/syncd.yaml":                  "the node runs already",
	"openssl crl -in /etc/mapsync/tls/crl.pem -noout -nextupdate": "the cluster has no revocation list",
	"openssl crl -in /etc/mapsync/crl.pem -noout -text":           "the cluster has no revocation list",
	"syncd purge ct_map --unused-for 1h":                          "the map has no takeover-expiry",
	"syncd notify --on-ready COMMAND --on-not-ready COMMAND":      "it runs until it is interrupted. syncd.TestNotify runs it",
	"syncd completion bash > /etc/bash_completion.d/syncd":        "it changes the machine",
}

// undone maps the beginning of commands to the command that undoes them, so that the next commands work.
var undone = map[string]string{"syncd drain": "syncd drain --undo; until syncd status --cluster >status.log; do sleep 0.1; done", "syncd scans pause": "syncd scans resume"}

// onNode is a function that adds the control socket of node lb1 to the commands of its daemon. A
// pipeline fails with its first command. On a kernel without hooks, a check without settings fails.
const onNode = `
set -o pipefail
syncd() {
	case $1 in
	check) command syncd "$@" || { local code=$?; [ $attach = none ] && [[ "$*" != *--config* ]] || return $code; } ;;
	maps | profiles | schema | version) command syncd "$@" ;;
	*) command syncd "$@" --control-socket lb1.sock ;;
	esac
}`

// formerNode runs node lb3 until lb1 has noticed it, so that commands may name it.
const formerNode = `
../scripts/make-credentials lb3 >credentials.log
sed 's/lb2/lb3/g; s/127\.0\.0\.12/127.0.0.13/g' lb2.yaml >lb3.yaml
command syncd run --config lb3.yaml 2>lb3.log &
until { syncd status || :; } | grep 'lb3  *connected' >/dev/null; do sleep 0.1; done
kill $! && wait $!
while { syncd status || :; } | grep 'lb3  *connected' >/dev/null; do sleep 0.1; done`

// placeholders replaces the names of the pages by those of the quick start. In one kernel, the maps of
// both nodes have the same name, so that schema needs a pin. A long measurement is shortened.
var placeholders = strings.NewReplacer(
	"MAP", "ct_map",
	"--config FILE", "--config lb1.yaml",
	"--peer PEER", "--peer lb2",
	"SUBJECT", "lb1.state",
	"--owner NODE", "--owner lb3",
	"--owner PEER", "--owner lb3",
	"--for 30s", "--for 1s",
	"--for 5s", "--for 1s",
	"scripts/", "../scripts/",
	"/etc/mapsync/syncd.yaml", "lb1.yaml",
	"/etc/mapsync/", "",
	"/run/mapsync", "lb1.state",
	"/sys/fs/bpf/lb/", "bpf/lb1/",
	"schema show MAP", `schema show "$PWD/bpf/lb1/ct_map"`,
	"schema show ct_map", `schema show "$PWD/bpf/lb1/ct_map"`,
	"syncd schema suggest ct_map", `syncd schema suggest "$PWD/bpf/lb1/ct_map"`,
	"schema suggest MAP", `schema suggest "$PWD/bpf/lb1/ct_map"`,
	"schema suggest ct_map", `schema suggest "$PWD/bpf/lb1/ct_map"`,
	"schema export ct_map", `schema export "$PWD/bpf/lb1/ct_map"`,
)
