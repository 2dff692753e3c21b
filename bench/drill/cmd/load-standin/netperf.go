package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// On the control connection, the client sends the port of a test, and an empty line at its end. The server answers each
// with a line.

// netserver accepts tests until it is killed.
func netserver() error {
	var listen, port string
	fs := netperfFlags()
	fs.StringVar(&listen, "L", "", "address to listen on")
	fs.StringVar(&port, "p", "", "control port")
	fs.Bool("D", false, "stay in the foreground, as always")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	l, err := net.Listen("tcp4", net.JoinHostPort(listen, port))
	if err != nil {
		return err
	}
	for {
		control, err := l.Accept()
		if err != nil {
			return err
		}
		go serveTest(control)
	}
}

// serveTest listens on the port that the control connection names, and echoes each byte, until the test ends.
func serveTest(control net.Conn) {
	defer control.Close()
	lines := bufio.NewScanner(control)
	if !lines.Scan() {
		return
	}
	l, err := net.Listen("tcp4", ":"+lines.Text())
	if err != nil {
		fmt.Fprintln(os.Stderr, "netserver:", err)
		return
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn) //nolint:errcheck // the client detects it
			}()
		}
	}()
	fmt.Fprintln(control, "listening")
	lines.Scan()
	fmt.Fprintln(control, "result")
}

func netperfFlags() *flag.FlagSet {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.Bool("4", false, "use IPv4, as always")
	return fs
}

// netperfTest is the client's side of a test.
type netperfTest struct {
	host, port, kind string
	data             string // port
	interval         float64
	length           int
	over             atomic.Bool
	exchanges        int
}

// netperf runs a test until its time is over or SIGALRM.
func netperf() error {
	var t netperfTest
	fs := netperfFlags()
	fs.StringVar(&t.host, "H", "", "address of the server")
	fs.StringVar(&t.port, "p", "", "control port")
	fs.StringVar(&t.kind, "t", "TCP_RR", "TCP_RR or TCP_CRR")
	fs.IntVar(&t.length, "l", 10, "seconds")
	fs.Float64Var(&t.interval, "D", 0, "interval of interim results, s; a negative one counts as positive")
	fs.Int("P", 0, "no headers, as always")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	_, data, ok := strings.Cut(strings.Join(fs.Args(), " "), ",")
	if t.data = data; !ok {
		return errors.New("the port of the data connection is missing: -- -P 0,PORT")
	}
	alarm := make(chan os.Signal, 1)
	signal.Notify(alarm, syscall.SIGALRM)
	go func() {
		select {
		case <-alarm:
		case <-time.After(time.Duration(t.length) * time.Second):
		}
		t.over.Store(true)
	}()
	return t.run()
}

func (t *netperfTest) run() error {
	control, err := net.Dial("tcp4", net.JoinHostPort(t.host, t.port))
	if err != nil {
		return err
	}
	defer control.Close()
	lines := bufio.NewScanner(control)
	ask := func(line string) error {
		if _, err := fmt.Fprintln(control, line); err != nil {
			return err
		}
		if !lines.Scan() {
			return errors.Join(errors.New("the control connection has ended"), lines.Err())
		}
		return nil
	}
	if err := ask(t.data); err != nil {
		return err
	}
	begun := time.Now()
	if err := t.exchange(begun); err != nil {
		return err
	}
	if err := ask(""); err != nil {
		return err
	}
	seconds := time.Since(begun).Seconds()
	fmt.Printf("16384 131072 1 1 %.2f %.2f\n16384 131072\n", seconds, float64(t.exchanges)/seconds)
	return nil
}

// exchange sends a byte and waits for its echo, again and again. TCP_CRR uses a new connection each time.
func (t *netperfTest) exchange(from time.Time) (err error) {
	var conn net.Conn
	interim := 0
	for !t.over.Load() {
		if conn == nil {
			if conn, err = net.Dial("tcp4", net.JoinHostPort(t.host, t.data)); err != nil {
				return err
			}
		}
		var echo [1]byte
		if _, err := conn.Write(echo[:]); err != nil {
			return errors.Join(err, conn.Close())
		}
		if _, err := io.ReadFull(conn, echo[:]); err != nil {
			return errors.Join(err, conn.Close())
		}
		t.exchanges++
		interim++
		if took := time.Since(from); t.interval != 0 && took.Seconds() >= max(t.interval, -t.interval) {
			fmt.Printf("Interim result: %.2f Trans/s over %.3f seconds ending at %.3f\n",
				float64(interim)/took.Seconds(), took.Seconds(), float64(time.Now().UnixMilli())/1000)
			from, interim = time.Now(), 0
		}
		if t.kind == "TCP_CRR" {
			if err := conn.Close(); err != nil {
				return err
			}
			conn = nil
		}
	}
	if conn != nil {
		return conn.Close()
	}
	return nil
}
