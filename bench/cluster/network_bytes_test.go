package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"mapsync/internal/netns"
)

// linkHeader is the size of an Ethernet header, which the counters of an interface include.
const linkHeader = 14

// TestNetworkBytesAreThoseOfTheInterface compares the bytes that syncd counts with the counters of the interfaces of its
// nodes.
func TestNetworkBytesAreThoseOfTheInterface(t *testing.T) {
	if os.Getenv(inMachine) != "" {
		t.Skip("the load is for a machine without emulation")
	}
	p := newNamespaces(t, false)
	tr := newTrial(t, p, 2, mapSettings{}, func(_ int, r *startRequest) { r.Config.MetricsListen = "127.0.0.1:" + metricsPort })
	// With offload, an interface counts one header for several segments.
	for i, ns := range p.spaces {
		tr.must(errors.Join(ns.TxChecksum("eth0", false), p.router.TxChecksum(fmt.Sprintf("n%d", i), false)))
	}
	before := networkBytes(t, p.spaces)
	tr.load(native)
	time.Sleep(5 * time.Second) // the duration of the load
	tr.eachPost("/unload")
	tr.awaitConverged()
	for i, after := range networkBytes(t, p.spaces) {
		for d, name := range []string{"sent", "received"} {
			counted, carried := after.counted[d]-before[i].counted[d], after.carried[d]-before[i].carried[d]
			batches, gossip := after.batches[d]-before[i].batches[d], after.gossip[d]-before[i].gossip[d]
			t.Logf("node %d, %s: interface %.0f bytes, counted %.0f, of which batches %.0f and gossip %.0f", i, name, carried, counted, batches, gossip)
			if apart := (counted - carried) / carried; apart < -0.02 || apart > 0.02 || carried < 1e6 {
				t.Errorf("bytes %s by node %d: got %.0f, want those of the interface, %.0f of at least 1 MB, within 2 %%", name, i, counted, carried)
			}
			if batches < counted/2 || batches+gossip > counted || gossip == 0 {
				t.Errorf("bytes %s by node %d: got %.0f of batches, %.0f of gossip, want most of %.0f of batches, and some of gossip", name, i, batches, gossip, counted)
			}
		}
	}
}

// bytesOfNode has bytes that a node has sent and received.
type bytesOfNode struct {
	carried [2]float64 // by the interface, without its headers
	counted [2]float64 // by syncd, with gossip
	batches [2]float64
	gossip  [2]float64
}

// networkBytes returns the bytes of idle nodes.
func networkBytes(t *testing.T, nodes []*netns.NS) []bytesOfNode {
	t.Helper()
	list := make([]bytesOfNode, len(nodes))
	for i, ns := range nodes {
		text := scrape(t, ns)
		for d, name := range []string{"sent", "received"} {
			list[i].gossip[d] = metricSum(t, text, `mapsync_network_bytes_total\{direction="`+name+`",protocol="gossip"\}`)
			list[i].counted[d] = list[i].gossip[d] + metricSum(t, text, `mapsync_network_bytes_total\{direction="`+name+`",protocol="replication"\}`)
			list[i].batches[d] = metricSum(t, text, `mapsync_peer_map_bytes_total\{direction="`+name+`",map="\w+",peer="\w+"\}`)
		}
		link, err := ns.Link("eth0")
		if err != nil {
			t.Fatal(err)
		}
		s := link.Attrs().Statistics
		list[i].carried = [2]float64{float64(s.TxBytes - linkHeader*s.TxPackets), float64(s.RxBytes - linkHeader*s.RxPackets)}
	}
	return list
}

// scrape returns the metrics of a node, by its loopback.
func scrape(t *testing.T, ns *netns.NS) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
			err = ns.Do(func() (err error) { conn, err = net.Dial("tcp", "127.0.0.1:"+metricsPort); return err })
			return conn, err
		},
	}}
	response, err := client.Get("http://node/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// metricSum returns the sum of the series that an expression matches, at least one.
func metricSum(t *testing.T, text, series string) (sum float64) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+series+` (\S+)$`).FindAllStringSubmatch(text, -1)
	if len(found) == 0 {
		t.Fatalf("metrics: got no series %s, want one", series)
	}
	for _, m := range found {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	return sum
}
