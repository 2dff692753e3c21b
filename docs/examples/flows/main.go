// Flows prints the connections of a load balancer, as received from one of its nodes. It is an
// example of a program that uses only the file from `syncd schema export` and a standard gRPC
// client.
//
//	flows -addr 10.0.0.1:7947 -name observer -cert observer.crt -key observer.key -ca ca.crt
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"mapsync/docs/examples/flows/ctmap"
)

// options holds the values of the command line flags.
type options struct {
	addr, name, node, mapName string
	cert, key, ca             string
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "127.0.0.1:7947", "gRPC `address` of a node")
	flag.StringVar(&o.name, "name", "observer", "this program's name: the one in its certificate")
	flag.StringVar(&o.node, "node", "", "node name in the server's certificate, if it differs from the host of addr")
	flag.StringVar(&o.mapName, "map", "ct_map", "name of the map in the cluster")
	flag.StringVar(&o.cert, "cert", "", "certificate `file`; none: no TLS")
	flag.StringVar(&o.key, "key", "", "key `file`")
	flag.StringVar(&o.ca, "ca", "", "CA certificate `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := follow(ctx, &o); err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "flows: %q\n", err) // the node chooses the text
		os.Exit(1)
	}
}

// follow prints the records that the node sends until ctx or the stream ends.
func follow(ctx context.Context, o *options) error {
	secured, err := secure(o)
	if err != nil {
		return err
	}
	client, err := grpc.NewClient(o.addr, grpc.WithTransportCredentials(secured))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	defer client.Close()
	stream, err := ctmap.NewReplicationServiceClient(client).Subscribe(ctx)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	hello := &ctmap.SubscribeRequest{Message: &ctmap.SubscribeRequest_Hello{Hello: &ctmap.Hello{
		ProtocolVersion: 2, Self: &ctmap.Incarnation{Node: o.name, Number: uint64(time.Now().UnixNano())},
	}}}
	observe := &ctmap.SubscribeRequest{Message: &ctmap.SubscribeRequest_Subscribe{Subscribe: &ctmap.MapSubscription{
		Map: 1, Name: o.mapName, Observe: true,
	}}}
	if err := errors.Join(stream.Send(hello), stream.Send(observe)); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if err := checkTypes(response.GetAccepted(), o.mapName); err != nil {
			return err
		}
		printBatch(response.GetBatch())
	}
}

// checkTypes returns an error if the node's entries have other types than ct_map.proto: they would be decoded wrongly. Other
// messages than the node's answer to the subscription are nil.
func checkTypes(accepted *ctmap.MapAccepted, mapName string) error {
	sum := int32(crc32.ChecksumIEEE(accepted.GetSchema()) & math.MaxInt32)
	if accepted == nil || sum == int32(ctmap.SchemaChecksum_SCHEMA_CHECKSUM_CRC32) {
		return nil
	}
	return fmt.Errorf("map %s of the node has other types than ct_map.proto, so its entries cannot be decoded: on the node, run "+
		"syncd schema export %[1]s --config /etc/mapsync/syncd.yaml, generate the code from the new file and build this program again", mapName)
}

func secure(o *options) (credentials.TransportCredentials, error) {
	if o.cert == "" {
		return insecure.NewCredentials(), nil
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	ca, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read CA: %s has no certificate", o.ca)
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: o.node, MinVersion: tls.VersionTLS13,
	}), nil
}

// printBatch prints the records of a batch. It quotes the names of nodes, which could control the terminal.
func printBatch(b *ctmap.Batch) {
	owners := b.GetOwners()
	for _, d := range b.GetDeltas() {
		if int(d.GetOwner()) >= len(owners) {
			continue // malformed
		}
		k, v := d.GetKey(), d.GetValue()
		flow := fmt.Sprintf("%s:%d > %s:%d", address(k.GetSaddr()), k.GetSport(), address(k.GetDaddr()), k.GetDport())
		owner := owners[d.GetOwner()].GetNode()
		if d.GetOperation() == ctmap.Operation_OPERATION_DELETE {
			fmt.Printf("%s closed owner=%q\n", flow, owner)
			continue
		}
		fmt.Printf("%s state=%d backend=%s:%d packets=%d used=%s owner=%q\n", flow, v.GetState(),
			address(v.GetNat().GetDaddr()), v.GetNat().GetDport(), v.GetPackets(),
			time.Unix(0, v.GetLastUsed()).UTC().Format(time.RFC3339Nano), owner)
	}
	if b.GetCaughtUp() {
		fmt.Println("-- caught up")
	}
}

// address returns one address of a dual-stack field. An IPv4 address is in the first 4 bytes.
// Trailing zeros are omitted.
func address(b []byte) netip.Addr {
	var whole [16]byte
	copy(whole[:], b)
	if len(b) <= 4 {
		return netip.AddrFrom4([4]byte(whole[:4]))
	}
	return netip.AddrFrom16(whole)
}
