// Command vmrun runs a program in a virtual machine with a selected kernel:
//
//	go test -exec "vmrun -kernel 6.1" ./...
//	vmrun -kernel 6.12 -mem 4G -file bin/syncd:/bin/syncd -- bin/drill -sessions 1000
//	vmrun kernels [-fetch] [-refresh] [release...]
//	vmrun native
//
// The program has the same path, working directory and testdata as on the host. vmrun returns its
// output and exit status. Exit status 125 means that vmrun itself failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"mapsync/internal/vm"
	"mapsync/internal/vm/guest"
	"mapsync/internal/vm/kernel"
)

// failed is the exit status for failures of vmrun itself.
const failed = 125

func main() {
	if guest.IsInit() { // this executable is also the virtual machine's init
		guest.Main()
	}
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmrun:", err)
		if code == 0 {
			code = failed
		}
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	if len(args) > 0 {
		switch args[0] {
		case "kernels":
			return 0, kernels(args[1:])
		case "native":
			return native()
		}
	}
	opts, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return opts.boot()
}

// native reports to scripts whether hooks can be tested without a virtual machine.
func native() (int, error) {
	ok, reason := vm.CanAttachNatively()
	fmt.Println(reason)
	if !ok {
		return 1, nil
	}
	return 0, nil
}

// boot runs the program and reports how it ended.
func (o *options) boot() (int, error) {
	log := newLogger(o.verbose)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := catchSignals(cancel)
	k, err := getKernel(ctx, o.kernel, log)
	if err != nil {
		return 0, err
	}
	log.Debug("booting", "kernel", k.String())
	cfg := o.config
	cfg.Kernel, cfg.Log, cfg.Signals = k, log, signals
	cfg.Stdout, cfg.Stderr = outputs()
	if cfg.Init, err = initFor(k.Arch()); err != nil {
		return 0, err
	}
	result, err := vm.Run(ctx, cfg)
	if result.Signal != "" {
		fmt.Fprintf(os.Stderr, "vmrun: program was ended by %s\n", result.Signal)
	}
	if result.Console != "" && (result.Code != 0 || o.verbose) {
		fmt.Fprintf(os.Stderr, "vmrun: kernel messages:\n%s\n", result.Console)
	}
	return result.Code, err
}

// initFor returns the executable that is init in the guest: vmrun itself, or for another architecture the
// executable beside it whose name ends with the architecture.
func initFor(arch string) (string, error) {
	if arch == runtime.GOARCH {
		return "", nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find vmrun: %w", err)
	}
	init := self + "-" + arch
	if _, err := os.Stat(init); err != nil {
		return "", fmt.Errorf("find vmrun for %s: %w; build it: GOARCH=%s go -C internal/vm build -o %s ./cmd/vmrun", arch, err, arch, init)
	}
	return init, nil
}

// catchSignals returns the signals of this process for forwarding to the program. After the first
// signal, the program has a few seconds to exit. A second signal stops the machine immediately, and
// this process too, even if its output is blocked.
func catchSignals(cancel context.CancelCauseFunc) <-chan os.Signal {
	caught, forward := make(chan os.Signal, 4), make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	go func() {
		first := <-caught
		forward <- first
		stop := func() { cancel(fmt.Errorf("stopped by %v", first)) }
		time.AfterFunc(5*time.Second, stop)
		<-caught
		stop()
		time.Sleep(2 * time.Second)
		os.Exit(failed)
	}()
	return forward
}

func getKernel(ctx context.Context, name string, log *slog.Logger) (*kernel.Kernel, error) {
	dir, err := kernel.DefaultDir()
	if err != nil {
		return nil, err
	}
	return kernel.NewStore(dir, log).Get(ctx, name)
}

// outputs returns the same writer twice if standard output and error are the same file, as under go
// test. The guest then preserves the order between them.
func outputs() (stdout, stderr io.Writer) {
	out, errOut := os.Stdout.Stat()
	err, errErr := os.Stderr.Stat()
	if errOut == nil && errErr == nil && os.SameFile(out, err) {
		return os.Stdout, os.Stdout
	}
	return os.Stdout, os.Stderr
}

func newLogger(verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}
