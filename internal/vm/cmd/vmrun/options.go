package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mapsync/internal/vm"
	"mapsync/internal/vm/kernel"
)

// options holds the command-line options.
type options struct {
	kernel  string
	verbose bool
	config  vm.Config
}

// defaultModules are the modules that the tests and the load balancer use. The cloud kernels build
// them as modules.
const defaultModules = "veth,sch_ingress,cls_bpf"

func parse(args []string) (*options, error) {
	o := new(options)
	fs := flag.NewFlagSet("vmrun", flag.ContinueOnError)
	fs.Usage = func() {
		_, _ = fmt.Fprintf(fs.Output(), "usage: vmrun [flags] program [arguments]\n"+
			"       vmrun kernels [-fetch] [-refresh] [release...]\n"+
			"       vmrun native    exit status 0 if this machine itself attaches kprobe and fexit programs\n\n")
		fs.PrintDefaults()
	}
	fs.StringVar(&o.kernel, "kernel", kernel.HostRelease,
		fmt.Sprintf("kernel `release`: %s, or %s for the distribution's own;\na kernel parameter may follow: 6.1/preempt=full", strings.Join(kernel.Releases(), ", "), kernel.HostRelease))
	fs.StringVar(&o.config.Memory, "mem", "2G", "memory of the machine, a `size` as QEMU writes it")
	fs.IntVar(&o.config.CPUs, "smp", 2, "`number` of CPUs")
	fs.IntVar(&o.config.PossibleCPUs, "possible-cpus", 0, "`number` of CPUs that the kernel keeps data for, if above -smp")
	fs.StringVar(&o.config.Accel, "accel", "tcg", "QEMU `accelerator`: tcg, or kvm where it works")
	fs.BoolVar(&o.config.Icount, "icount", false, "count instructions instead of time, one a nanosecond, with one CPU")
	fs.StringVar(&o.config.Monitor, "monitor", "", "make a socket at this `path` for the monitor of the emulator")
	fs.StringVar(&o.config.Link.Socket, "link", "", "link to another machine by a socket at this `path`")
	fs.BoolVar(&o.config.Link.Listen, "link-listen", false, "make the socket of -link; the other machine starts later")
	fs.DurationVar(&o.config.Timeout, "timeout", 20*time.Minute, "end the machine after this `time`; 0 for never;\nby default a test's own -test.timeout and two minutes if that is longer")
	fs.BoolVar(&o.verbose, "v", false, "verbose output, with kernel messages")
	modules := fs.String("modules", defaultModules, "kernel modules to load, a comma-separated `list`")
	fs.Func("file", "copy a file or directory into the guest, `host[:guest]`; may be repeated", o.addFile)
	fs.Func("out", "copy a file or directory out of the guest at the end, `guest[:host]`; may be repeated", o.addOut)
	fs.Func("env", "environment variable `K=V`, or K with its value here; may be repeated", o.addEnv)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if o.config.Args = fs.Args(); len(o.config.Args) == 0 {
		fs.Usage()
		return nil, errors.New("no program given")
	}
	o.config.Modules = strings.FieldsFunc(*modules, func(r rune) bool { return r == ',' || r == ' ' })
	if err := forGoTest(&o.config, isSet(fs, "timeout")); err != nil {
		return nil, err
	}
	return o, nil
}

func isSet(fs *flag.FlagSet, name string) (set bool) {
	fs.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// pathPair parses "from:to". Without a colon, both paths are equal.
func pathPair(text string) (from, to string, err error) {
	from, to, found := strings.Cut(text, ":")
	if !found {
		to = from
	}
	if from == "" || to == "" {
		return "", "", fmt.Errorf("parse %q: not path or path:path", text)
	}
	if from, err = filepath.Abs(from); err != nil {
		return "", "", err
	}
	to, err = filepath.Abs(to)
	return from, to, err
}

func (o *options) addFile(text string) error {
	host, guest, err := pathPair(text)
	o.config.Files = append(o.config.Files, vm.File{Host: host, Guest: guest})
	return err
}

func (o *options) addOut(text string) error {
	guest, host, err := pathPair(text)
	o.config.Outs = append(o.config.Outs, vm.Out{Guest: guest, Host: host})
	return err
}

func (o *options) addEnv(text string) error {
	if !strings.Contains(text, "=") {
		value, ok := os.LookupEnv(text)
		if !ok {
			return nil
		}
		text += "=" + value
	}
	o.config.Env = append(o.config.Env, text)
	return nil
}
