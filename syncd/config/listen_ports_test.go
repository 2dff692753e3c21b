package config

import (
	"strings"
	"testing"
)

// TestListenersHaveTheirOwnPorts verifies that two settings cannot name one port, unless the daemon opens only one of them.
func TestListenersHaveTheirOwnPorts(t *testing.T) {
	const peers = "map: [a]\nnode-name: a\ninsecure: true\n"
	for text, want := range map[string]string{
		peers + "gossip-listen: 10.0.0.1:7947\ngrpc-listen: 10.0.0.1:7947\n":                    `grpc-listen "10.0.0.1:7947" has the port of gossip-listen`,
		peers + "grpc-listen: 10.0.0.1:9746\nmetrics-listen: 10.0.0.1:9746\n":                   "has the port of grpc-listen",
		peers + "grpc-listen: 10.0.0.1:9746\nmetrics-listen: ':9746'\n":                         "has the port of grpc-listen",
		peers + "gossip-listen: '[::]:9746'\nmetrics-listen: 127.0.0.1:9746\n":                  "has the port of gossip-listen",
		peers + "gossip-listen: 10.0.0.1:7946\ngrpc-listen: 10.0.0.2:7946\n":                    "",
		peers + "grpc-listen: 10.0.0.1:0\nmetrics-listen: 10.0.0.1:0\n":                         "",
		peers + "metrics-listen: ''\n":                                                          "",
		"map: [a]\nnode-name: a\ngrpc-listen: 127.0.0.1:9746\nmetrics-listen: 127.0.0.1:9746\n": "",
	} {
		_, err := Load(write(t, text), nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got error %v, want %q", text, err, want)
		}
	}
}
