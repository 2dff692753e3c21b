package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"time"
)

// tcpkaliOptions are tcpkali's.
type tcpkaliOptions struct {
	connections, connectRate, messageRate int
	duration                              time.Duration
	message, address                      string
	sources                               []net.IP
}

func tcpkali() error {
	var o tcpkaliOptions
	flag.IntVar(&o.connections, "connections", 1, "number of connections")
	flag.IntVar(&o.connectRate, "connect-rate", 100, "new connections a second")
	flag.IntVar(&o.messageRate, "message-rate", 1, "messages a second on each connection")
	flag.DurationVar(&o.duration, "duration", 10*time.Second, "time of the load")
	flag.StringVar(&o.message, "message", "", "message that is repeated")
	flag.Func("source-ip", "source address, repeatable", func(s string) error {
		ip := net.ParseIP(s)
		if ip == nil {
			return fmt.Errorf("%q is not an address", s)
		}
		o.sources = append(o.sources, ip)
		return nil
	})
	flag.Parse()
	if flag.NArg() != 1 || o.messageRate < 1 || o.connectRate < 1 {
		return errors.New("give one address, and rates above 0")
	}
	o.address = flag.Arg(0)
	for i := range o.connections {
		go o.connection(i)
		time.Sleep(time.Second / time.Duration(o.connectRate))
	}
	time.Sleep(o.duration)
	return nil
}

// connection keeps one connection open.
func (o *tcpkaliOptions) connection(i int) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	if len(o.sources) > 0 {
		dialer.LocalAddr = &net.TCPAddr{IP: o.sources[i%len(o.sources)]}
	}
	for {
		if conn, err := dialer.Dial("tcp", o.address); err == nil {
			o.talk(conn)
		}
		time.Sleep(time.Second / 10)
	}
}

// talk sends messages until the connection is lost.
func (o *tcpkaliOptions) talk(conn net.Conn) {
	defer conn.Close()
	go io.Copy(io.Discard, conn) //nolint:errcheck // a lost connection also fails to send
	for {
		if _, err := io.WriteString(conn, o.message); err != nil {
			return
		}
		time.Sleep(time.Second / time.Duration(o.messageRate))
	}
}
