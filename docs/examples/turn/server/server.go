// Package server runs pion's TURN server with the offload: it writes allocations and channels into the
// maps, and rebuilds them from the maps after a restart or a takeover.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/pion/turn/v4"

	"mapsync/docs/examples/turn/offload"
)

// sweepInterval is the time between two removals of entries that have ended.
const sweepInterval = 2 * time.Second

// Config configures a Server.
type Config struct {
	// Listen is the IPv4 address and the UDP port for clients. The servers of a pair use the same one,
	// and its address is also that of relay addresses.
	Listen    netip.AddrPort
	Interface string // of the offload; empty: no offload
	PinDir    string // in a BPF file system
	Realm     string
	Secret    []byte // from which passwords are derived
	// Standby delays the rebuild until Activate, or until the first datagram of a client.
	Standby bool
	Logger  *slog.Logger
}

// Server is a TURN server that runs.
type Server struct {
	log      *slog.Logger
	secret   []byte
	offload  *offload.Offload
	recorder *recorder
	conn     *conn
	turn     *turn.Server
}

// Start starts a server. The caller closes it.
func Start(c *Config) (_ *Server, err error) {
	if !c.Listen.Addr().Is4() || c.Listen.Port() == 0 {
		return nil, fmt.Errorf("listen address %s is not an IPv4 address and a port", c.Listen)
	}
	o, err := offload.Open(c.PinDir, c.Listen)
	if err != nil {
		return nil, err
	}
	s := &Server{log: c.Logger, secret: c.Secret, offload: o, recorder: newRecorder(o, c.Logger)}
	if c.Interface == "" {
		err = o.Detach()
	} else {
		err = o.Attach(c.Interface)
	}
	if err == nil {
		err = s.listen(c)
	}
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return s, nil
}

func (s *Server) listen(c *Config) error {
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(c.Listen))
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	s.conn = &conn{PacketConn: socket, succeeded: s.recorder.succeeded, rebuild: s.rebuild}
	if !c.Standby {
		if err := s.conn.activate(); err != nil {
			return errors.Join(err, socket.Close())
		}
	}
	s.turn, err = turn.NewServer(turn.ServerConfig{
		Realm: c.Realm, AuthHandler: s.authenticate, EventHandler: s.recorder.events(), ChannelBindTimeout: channelLifetime,
		PacketConnConfigs: []turn.PacketConnConfig{{
			PacketConn: s.conn, RelayAddressGenerator: &relayAddresses{c.Listen.Addr(), s.conn},
		}},
	})
	if err != nil {
		return errors.Join(fmt.Errorf("start TURN server: %w", err), socket.Close())
	}
	return nil
}

// Activate rebuilds the allocations in the maps, unless this was done before.
func (s *Server) Activate() error { return s.conn.activate() }

// Sweep removes entries that have ended from the maps until ctx ends. It must have returned before Close.
func (s *Server) Sweep(ctx context.Context) {
	sweeper := offload.NewSweeper(s.offload)
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		removed, err := sweeper.Sweep()
		if err != nil {
			s.log.Error("sweep failed", "error", err)
		}
		if removed > 0 {
			s.log.Info("removed entries that have ended", "entries", removed)
		}
	}
}

// Close stops the server. The entries in the maps and the attached offload remain, so that channels
// continue and the next server rebuilds the allocations.
func (s *Server) Close() error {
	s.recorder.close()
	return errors.Join(s.turn.Close(), s.offload.Close())
}
