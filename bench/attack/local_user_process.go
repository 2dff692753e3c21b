package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"mapsync/internal/testcert"
	"mapsync/peers"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// localUser is the process that attacks as a local user.
type localUser struct {
	orders localUserOrders
	report localUserReport
	http   *http.Client
	forged *tls.Config // with a certificate for lb2 of another CA
}

// runLocalUser is the main function of the process of a local user. It prints its report.
func runLocalUser(orders string) error {
	u := &localUser{
		report: localUserReport{Tries: make(map[string]int), Harm: make(map[string]bool)},
		http:   &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	if err := json.Unmarshal([]byte(orders), &u.orders); err != nil {
		return fmt.Errorf("decode the orders: %w", err)
	}
	if err := checkUnprivileged(); err != nil {
		return err
	}
	if err := u.forge(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), u.orders.Length)
	defer cancel()
	for round := 0; round == 0 || sleep(ctx, 50*time.Millisecond); round++ {
		for i := range u.orders.Nodes {
			n := &u.orders.Nodes[i]
			u.tryStreams(ctx, n)
			u.tryHTTP(n)
			u.trySocket(n)
			u.tryProcess(n)
		}
		u.tryFiles()
		u.tryMapIDs()
		if round%20 == 0 {
			u.tryGossip(ctx)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(u.report)
}

// checkUnprivileged returns an error unless this process has no capability and is not root.
func checkUnprivileged() error {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	if os.Geteuid() != localUserID || !strings.Contains(string(text), "\nCapEff:\t0000000000000000\n") {
		return errors.New("the process of the local user has privileges")
	}
	return nil
}

// try counts a try of a way, and notes harm if it has succeeded.
func (u *localUser) try(way string, succeeded bool, harm string) {
	u.report.Tries[way]++
	if succeeded {
		u.report.Harm[harm] = true
	}
}

// forge makes a certificate for a daemon's name, signed by a CA of the local user.
func (u *localUser) forge() error {
	ca, err := testcert.NewCA(u.orders.Scratch, "own")
	if err != nil {
		return err
	}
	pair, err := ca.Issue("lb2", testcert.Options{})
	if err != nil {
		return err
	}
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		return fmt.Errorf("load the forged certificate: %w", err)
	}
	u.forged = &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	return nil
}

// tryStreams subscribes and sends as a node of a daemon's name and as an unknown one, without TLS, without a certificate and with a
// forged one.
func (u *localUser) tryStreams(ctx context.Context, n *localTarget) {
	for way, creds := range map[string]credentials.TransportCredentials{
		"plain":          insecure.NewCredentials(),
		"no certificate": credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}),
		"forged":         credentials.NewTLS(u.forged),
	} {
		for _, name := range []string{localUserName, "lb2"} {
			for _, observe := range []bool{false, true} {
				answer := u.subscribe(ctx, n, creds, name, observe)
				u.try("streams "+way, answer != nil, fmt.Sprintf("subscribe to %s, %s: %.100v", n.Name, way, answer))
			}
		}
	}
}

// subscribe returns the first answer of a daemon to a subscription, nil if there is none.
func (u *localUser) subscribe(ctx context.Context, n *localTarget, creds credentials.TransportCredentials, name string, observe bool) *mapsyncv1.SubscribeResponse {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+n.Addr+":"+grpcPort, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil
	}
	defer conn.Close()
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(ctx)
	if err != nil {
		return nil
	}
	s := &attackStream{stream, conn}
	_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{
		ProtocolVersion: 2, Self: &mapsyncv1.Incarnation{Node: name, Number: versionAt(0)}, Address: u.orders.Host + ":" + grpcPort,
	}}})
	m := replicaSubscription(1)
	m.Observe = observe
	s.subscribeMap(m)
	answer, err := s.Recv()
	if err != nil {
		return nil
	}
	return answer
}

// tryGossip joins gossip without a key and with another key.
func (u *localUser) tryGossip(ctx context.Context) {
	for way, keys := range map[string][][]byte{"plain": nil, "other key": {make([]byte, 32)}} {
		o := peers.Options{
			NodeName: localUserName, Incarnation: versionAt(0), BindAddr: u.orders.Host + ":" + gossipPort, ServiceAddr: u.orders.Host + ":" + grpcPort,
			GossipKeys: keys,
		}
		for _, n := range u.orders.Nodes {
			o.Join = append(o.Join, n.Addr+":"+gossipPort)
		}
		m, err := peers.New(o)
		if err != nil {
			u.report.Harm["not make the attack on gossip: "+err.Error()] = true
			continue
		}
		limited, cancel := context.WithTimeout(ctx, time.Second)
		_ = m.Run(limited) // the daemons refuse it, as expected
		cancel()
		u.try("gossip "+way, len(m.Members()) > 0, "join gossip, "+way)
		_ = m.Close()
	}
}

// controlPaths are paths of the control socket, which the metrics port must not serve.
var controlPaths = []string{"/status", "/names", "/ready", "/drain", "/dump/" + mapName, "/watch/" + mapName, "/diff/" + mapName, "/kernel-calls", "/debug/pprof/"}

// tryHTTP requests everything from the metrics port. Metrics and readiness are public, entries are not.
func (u *localUser) tryHTTP(n *localTarget) {
	for _, path := range append([]string{"/metrics", "/readyz?verbose", "/healthz"}, controlPaths...) {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
			request, err := http.NewRequest(method, "http://"+n.Addr+":"+metricsPort+path, nil)
			if err != nil {
				continue
			}
			response, err := u.http.Do(request)
			if err != nil {
				continue
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			public := method == http.MethodGet && (path == "/metrics" || path == "/healthz" || strings.HasPrefix(path, "/readyz"))
			found := response.StatusCode < 400 && !public || hasEntry(string(body))
			u.try("http", found, fmt.Sprintf("get %s %s of %s: %d", method, path, n.Name, response.StatusCode))
		}
	}
}

// hasEntry reports whether a text has the key of an entry, in hexadecimal digits.
func hasEntry(text string) bool {
	return strings.Contains(text, fmt.Sprintf("%x", entryKey(1, 0))) || strings.Contains(text, fmt.Sprintf("%x", entryKey(2, 1)))
}

// trySocket connects to the control socket.
func (u *localUser) trySocket(n *localTarget) {
	conn, err := net.DialTimeout("unix", n.Socket, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	u.try("control socket", err == nil, "connect to the control socket of "+n.Name)
}
