package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"
	"mapsync/syncd/privilege"

	"github.com/cilium/ebpf"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// report is the output of `syncd check --json`.
type report struct {
	Kernel string `json:"kernel"`
	UID    int    `json:"uid"`
	Usable bool   `json:"usable"` // with the default settings
	// Attach is the method that --attach auto selects, or none if no hook works: the default settings then do not work, and
	// Warning explains it. Empty: no method works.
	Attach   string          `json:"attach"`
	Warning  string          `json:"warning,omitempty"`
	Features []reportFeature `json:"features"`
	Observed []observation   `json:"observed"`
	// Missing are the optional kernel functions that this kernel lacks: attach method and function.
	Missing []string `json:"missing,omitempty"`
	// Lookups is what the settings in-place: hook and takeover-expiry cost on this host. LookupsProblem is why they have no
	// effect.
	Lookups        *lookupCost `json:"lookup_hook,omitempty"`
	LookupsProblem string      `json:"lookup_hook_problem,omitempty"`
	hostCoverage
}

type reportFeature struct {
	Name     string `json:"name"`
	What     string `json:"what"`
	Required bool   `json:"required"`
	Works    bool   `json:"works"`
	Problem  string `json:"problem,omitempty"`
}

// lookupCost is the time that in-place: hook and takeover-expiry add to each lookup in a hash map by a BPF program, in
// nanoseconds.
type lookupCost struct {
	Other   int64 `json:"other_map_ns"`
	Watched int64 `json:"watched_map_ns"`
	Uses    int64 `json:"takeover_expiry_map_ns"`
}

// observation is one kind of write to a watched map, and how each attach method detects it.
type observation struct {
	Write   string `json:"write"`
	Fexit   string `json:"fexit"`
	Kprobe  string `json:"kprobe"`
	Syscall string `json:"syscall"`
	None    string `json:"none"`
}

func newCheck() *cobra.Command {
	var asJSON, asUnit bool
	var file, unit string
	settings := config.Default()
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check this kernel and these privileges, or settings",
		Long: `Without --config: test each kernel feature that the daemon needs, briefly and on temporary maps,
and report which writes of a load balancer syncd detects, and for each map of this host how soon.
With --config, or with flags that are settings: check these settings instead, without starting
the daemon: values, files, certificates and their names, keys, addresses and ports, the peers of
join, the attach method, and the maps with their types, fields and limits. It fails if run would
fail, or would not replicate a map. A map that does not exist yet, and a peer that does not answer,
is a warning. If the settings are usable, report how soon syncd detects writes to their maps with
these settings. This attaches the hooks briefly.
With --as-unit: do that with the user, the capabilities and the sandbox of the systemd unit.
Exit code 0: usable, perhaps with warnings. 1: syncd cannot work on this kernel, or with these
privileges, unless settings like attach help. 2: the settings cannot be used here.`,
		Example: `  syncd check
  syncd check --json | jq .attach
  syncd check --config /etc/mapsync/syncd.yaml --node-name lb1
  syncd check --config /etc/mapsync/syncd.yaml --as-unit`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asUnit {
				return checkAsUnit(cmd, unit)
			}
			if file != "" || settingsGiven(cmd) {
				return checkSettings(cmd, file, asJSON)
			}
			return checkKernel(cmd, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&asUnit, "as-unit", false, "check as the systemd unit: with its user, capabilities and sandbox (needs root)")
	cmd.Flags().StringVar(&unit, "unit", "syncd.service", "`name` of the unit of --as-unit")
	cmd.Flags().StringVar(&file, "config", "", "YAML `file` of settings to check")
	settings.Bind(cmd.Flags())
	return cmd
}

// checkKernel prints the report of this kernel, as JSON or as text. It returns errReported if syncd cannot work here.
func checkKernel(cmd *cobra.Command, asJSON bool) (err error) {
	r := makeReport(cmd.Context())
	if asJSON {
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
	} else {
		err = r.print(cmd.OutOrStdout())
	}
	if err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	if !r.Usable {
		return errReported
	}
	return nil
}

// settingsGiven reports whether the command line sets a flag that is a setting.
func settingsGiven(cmd *cobra.Command) (given bool) {
	cmd.Flags().Visit(func(f *pflag.Flag) { given = given || !slices.Contains([]string{"json", "as-unit", "unit"}, f.Name) })
	return given
}

func makeReport(ctx context.Context) report {
	r := report{Kernel: kernelRelease(), UID: os.Geteuid()}
	r.add("bpf", "use bpf(2): capabilities, seccomp, locked memory (before kernel 5.11)", true, privilege.AllowBPF())
	features := kmap.Probe()
	for _, f := range features {
		r.add(f.Name, f.Purpose, f.Required, f.Err)
	}
	offers := capture.Probe(capture.AttachFexit, capture.AttachKprobe, capture.AttachSyscall)
	r.addHooks(offers)
	r.Usable = features.Err() == nil && r.Attach != ""
	if features.Err() == nil && r.Attach == "" {
		r.Attach = string(capture.AttachNone)
	}
	r.warn()
	r.observe(offers[0], offers[1], offers[2])
	r.measureLookups()
	r.coverMaps(ctx, offers)
	return r
}

// coverMaps adds the maps of this host, for the attach method that --attach auto takes.
func (r *report) coverMaps(ctx context.Context, offers []capture.ProbeResult) {
	chosen := &capture.ProbeResult{Attach: capture.Attach(r.Attach)}
	for i := range offers {
		if string(offers[i].Attach) == r.Attach {
			chosen = &offers[i]
		}
	}
	c := config.Default()
	infos, omitted, err := kmap.List(ctx)
	if r.MapsOmitted = omitted; err == nil {
		r.Maps, err = daemon.CoverMaps(ctx, infos, chosen, &c)
	}
	if err != nil {
		r.MapsProblem = err.Error()
	}
}

// addHooks adds the attach methods to the features. It chooses the first one that works and that auto may choose.
func (r *report) addHooks(offers []capture.ProbeResult) {
	for _, o := range offers {
		r.add(string(o.Attach), attachPurpose[o.Attach], false, o.Err)
		if o.Attach == capture.AttachKprobe && o.Err == nil {
			r.add("tracefs", "report all writes by bpf(2) while many tasks wait in bpf(2) (kprobe)", false, o.Limited)
		}
		if o.Err == nil && r.Attach == "" && o.Attach != capture.AttachSyscall {
			r.Attach = string(o.Attach)
		}
	}
}

func (r *report) add(name, what string, required bool, err error) {
	f := reportFeature{Name: name, What: what, Required: required, Works: err == nil}
	if err != nil {
		f.Problem = err.Error()
	}
	r.Features = append(r.Features, f)
}

// Cell texts of the table of observations. print explains them.
const (
	atOnce       = daemon.CoverAtOnce
	byScan       = daemon.CoverByScan
	settling     = "settling"
	scanAtOnce   = "scan at once"
	notAvailable = daemon.CoverNone
)

// attachPurpose describes each attach method.
var attachPurpose = map[capture.Attach]string{
	capture.AttachFexit:   "hook the kernel's hash-map functions by fexit",
	capture.AttachKprobe:  "hook the kernel's hash-map functions by kprobe",
	capture.AttachSyscall: "report bpf(2) writes at the tracepoint sys_exit (only with --attach syscall)",
}

// observe adds what each attach method detects. docs/capture.md gives the reasons.
func (r *report) observe(fexit, kprobe, syscall capture.ProbeResult) {
	for _, o := range []capture.ProbeResult{fexit, kprobe} {
		for _, symbol := range o.Missing {
			r.Missing = append(r.Missing, string(o.Attach)+" "+symbol)
		}
	}
	add := func(write, byFexit, byKprobe, bySyscall string) {
		for cell, o := range map[*string]capture.ProbeResult{&byFexit: fexit, &byKprobe: kprobe, &bySyscall: syscall} {
			if o.Err != nil {
				*cell = notAvailable
			}
		}
		r.Observed = append(r.Observed, observation{write, byFexit, byKprobe, bySyscall, byScan})
	}
	optional := func(o capture.ProbeResult, symbols ...string) string {
		if slices.ContainsFunc(symbols, func(s string) bool { return slices.Contains(o.Missing, s) }) {
			return byScan
		}
		return atOnce
	}
	kprobed := optional(kprobe, capture.BPFEntry)
	add("update or delete by a BPF program", atOnce, atOnce, byScan)
	traced := byScan
	if capture.AttachFexit.Detects(ebpf.Kprobe) {
		traced = atOnce
	}
	add("program under a kprobe or tracepoint", traced, byScan, byScan)
	add("update or delete by bpf(2)", atOnce, kprobed, atOnce)
	add("lookup-and-delete by bpf(2)", optional(fexit, "htab_map_lookup_and_delete_elem"), kprobed, atOnce)
	add("batch lookup-and-delete by bpf(2)", optional(fexit, "htab_map_lookup_and_delete_batch", "htab_lru_map_lookup_and_delete_batch"),
		kprobed, atOnce)
	add("change in place, key is new", settling, settling, byScan)
	add("change in place, key has settled", byScan, byScan, byScan)
	perCPU := []string{"htab_percpu_map_update_elem", "htab_lru_percpu_map_update_elem"}
	add("per-CPU map, update by a BPF program", optional(fexit, perCPU...), optional(kprobe, perCPU...), byScan)
	add("per-CPU map, update by bpf(2)", optional(fexit, "bpf_percpu_hash_update"), kprobed, atOnce)
	add("per-CPU map, lookup-and-delete by bpf(2)", optional(fexit,
		"htab_percpu_map_lookup_and_delete_elem", "htab_lru_percpu_map_lookup_and_delete_elem"), kprobed, atOnce)
	add("array, update by a BPF program", optional(fexit, "array_map_update_elem"), optional(kprobe, "array_map_update_elem"), byScan)
	add("array, update by bpf(2)", optional(fexit, "array_map_update_elem", "bpf_percpu_array_update"), kprobed, atOnce)
	add("array, write through mmap(2)", byScan, byScan, byScan)
	add("LRU map, eviction by a BPF program", optional(fexit, "htab_lru_map_delete_node"),
		optional(kprobe, "htab_lru_map_delete_node"), byScan)
	add("LRU map, eviction by bpf(2)", optional(fexit, "htab_lru_map_delete_node"), byScan, byScan)
	add("write that the kernel hides from a hook", scanAtOnce, byScan, byScan)
}

// measureLookups measures what the hook on lookups costs.
func (r *report) measureLookups() {
	tick, err := kmap.TickLength()
	if err == nil && r.Attach != string(capture.AttachFexit) {
		err = errors.New("it needs fexit")
	}
	var cost capture.LookupCost
	if err == nil {
		cost, err = capture.MeasureLookupCost(tick)
	}
	if err != nil {
		r.LookupsProblem = err.Error()
		return
	}
	r.Lookups = &lookupCost{cost.Other.Nanoseconds(), cost.Watched.Nanoseconds(), cost.Uses.Nanoseconds()}
}

// printLookups prints what the hook on lookups costs.
func (r *report) printLookups(out io.Writer) {
	if r.Lookups == nil {
		fmt.Fprintf(out, "in-place: hook is unavailable, scans find changes in place, and takeover-expiry needs a FIELD: %s\n\n", r.LookupsProblem)
		return
	}
	fmt.Fprintf(out, "in-place: hook finds changes in place within %d ms; it adds %d ns to each lookup in that\n"+
		"map, and %d ns to each lookup in another hash map of this host\n"+
		"takeover-expiry without a FIELD adds %d ns to each lookup in that map, and as much to others\n\n",
		capture.MaxInPlaceDelay.Milliseconds(), r.Lookups.Watched, r.Lookups.Other, r.Lookups.Uses)
}

// warn sets the warning if hooks are unavailable and scans alone find changes.
func (r *report) warn() {
	if r.Attach != string(capture.AttachNone) {
		return
	}
	c := config.Default()
	r.Warning = fmt.Sprintf("hooks are unavailable, and syncd starts only with attach: none or syscall; "+
		"with none, every change is replicated by scan, "+
		"within scan-interval (%s) and the duration of a scan, and a failover loses the latest changes; "+
		"syscall replicates the writes of a control plane at once", c.ScanInterval)
}

func (r *report) print(out io.Writer) error {
	fmt.Fprintf(out, "kernel %s, uid %d\n\n", r.Kernel, r.UID)
	if err := r.printFeatures(out); err != nil {
		return err
	}
	printDelays(out)
	r.printLookups(out)
	if err := r.hostCoverage.print(out); err != nil {
		return err
	}
	switch {
	case r.Warning != "":
		fmt.Fprintln(out, "syncd cannot work here with the default settings: "+r.Warning)
	case !r.Usable:
		fmt.Fprintln(out, "syncd cannot work here")
	default:
		fmt.Fprintf(out, "syncd can work here; --attach auto takes %s\n", r.Attach)
	}
	return nil
}

// printFeatures prints the features of the kernel, the changes that each attach method detects, and what is missing.
func (r *report) printFeatures(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, f := range r.Features {
		mark := "yes"
		if !f.Works {
			mark = "no"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Name, mark, f.What)
	}
	fmt.Fprintf(w, "\nCHANGE TO A WATCHED MAP\tFEXIT\tKPROBE\tSYSCALL\tNONE\n")
	for _, o := range r.Observed {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", o.Write, o.Fexit, o.Kprobe, o.Syscall, o.None)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, f := range r.Features {
		if !f.Works {
			fmt.Fprintf(out, "%s: %s\n", f.Name, f.Problem)
		}
	}
	for _, missing := range r.Missing {
		fmt.Fprintln(out, "this kernel lacks a function to hook:", missing)
	}
	return nil
}

// printDelays prints after which time syncd detects a change, with the default settings.
func printDelays(out io.Writer) {
	c := config.Default()
	fmt.Fprintf(out, "at once:      a hook reports the change\n"+
		"settling:     syncd reads a new key again after 50 ms to 6.4 s\n"+
		"by scan:      within scan-interval (%s) and the duration of a scan; with fexit, in a map that\n"+
		"              does not change, within max-scan-interval (%s, and up to %s if a scan needs\n"+
		"              more than 1 %% of a core at that interval); longer if scan-budget\n"+
		"              (%v %% of a core) is too low: `syncd status` shows the effective interval\n"+
		"scan at once: the kernel counts the change, and syncd scans all maps\n\n", c.ScanInterval, c.LongestScanInterval(), c.LongestCostlyScanInterval(), c.ScanBudget)
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
