// Package feed receives the flows of all nodes on one stream, as protobuf messages whose types are generated from the
// tracer's map. It uses only the file from `syncd schema export` and a standard gRPC client.
package feed

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"mapsync/docs/examples/bundling/flowpb"
)

// options are the command line.
type options struct {
	addr, name, node, mapName string
	cert, key, ca             string
	port                      uint
	interval                  time.Duration
}

// Run prints the sums of each owner at an interval, one JSON object a line, until ctx or the stream ends. args is the
// command line without the program.
func Run(ctx context.Context, out io.Writer, args []string) error {
	var o options
	flags := flag.NewFlagSet("feed", flag.ContinueOnError)
	flags.StringVar(&o.addr, "addr", "127.0.0.1:7947", "gRPC `address` of a node")
	flags.StringVar(&o.name, "name", "observer", "this program's name: the one in its certificate")
	flags.StringVar(&o.node, "node", "", "node name in the server's certificate, if it differs from the host of addr")
	flags.StringVar(&o.mapName, "map", "flows", "name of the map in the cluster")
	flags.StringVar(&o.cert, "cert", "", "certificate `file`; none: no TLS")
	flags.StringVar(&o.key, "key", "", "key `file`")
	flags.StringVar(&o.ca, "ca", "", "CA certificate `file`")
	flags.UintVar(&o.port, "port", 0, "only the flows of services on this `port`; 0: all")
	flags.DurationVar(&o.interval, "interval", time.Second, "`time` between two lines")
	if err := flags.Parse(args); err != nil {
		return err
	}
	err := o.follow(ctx, out)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// follow receives the records that the node sends.
func (o *options) follow(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, client, err := o.subscribe(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	batches := make(chan *flowpb.Batch)
	ended := make(chan error, 1)
	go func() {
		for {
			response, err := stream.Recv()
			if err != nil {
				ended <- fmt.Errorf("receive: %w", err)
				return
			}
			if err := checkAnswer(response, o.mapName); err != nil {
				ended <- err
				return
			}
			select {
			case batches <- response.GetBatch():
			case <-ctx.Done():
				return
			}
		}
	}()
	sums := records{port: uint32(o.port), flows: make(map[string]record)}
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for {
		select {
		case b := <-batches:
			if err := sums.receive(b); err != nil {
				return err
			}
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case now := <-ticker.C:
			if err := json.NewEncoder(out).Encode(sums.table(now)); err != nil {
				return err
			}
		}
	}
}

// checkAnswer returns an error if the node refuses the map, or if its entries have other types than flows.proto: they would be
// decoded wrongly.
func checkAnswer(response *flowpb.SubscribeResponse, mapName string) error {
	if refused := response.GetRefused(); refused != nil {
		return fmt.Errorf("the node refuses the map %s: %s", mapName, refused)
	}
	accepted := response.GetAccepted()
	sum := int32(crc32.ChecksumIEEE(accepted.GetSchema()) & math.MaxInt32)
	if accepted == nil || sum == int32(flowpb.SchemaChecksum_SCHEMA_CHECKSUM_CRC32) {
		return nil
	}
	return fmt.Errorf("map %s of the node has other types than flows.proto, so its entries cannot be decoded: on the node, run "+
		"syncd schema export %[1]s --config /etc/mapsync/syncd.yaml, generate the code from the new file and build this program again", mapName)
}

// subscribe begins a stream that observes the map.
func (o *options) subscribe(ctx context.Context) (flowpb.ReplicationService_SubscribeClient, *grpc.ClientConn, error) {
	secured, err := secure(o)
	if err != nil {
		return nil, nil, err
	}
	client, err := grpc.NewClient(o.addr, grpc.WithTransportCredentials(secured))
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	stream, err := flowpb.NewReplicationServiceClient(client).Subscribe(ctx)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("subscribe: %w", err), client.Close())
	}
	hello := &flowpb.SubscribeRequest{Message: &flowpb.SubscribeRequest_Hello{Hello: &flowpb.Hello{
		ProtocolVersion: 2, Self: &flowpb.Incarnation{Node: o.name, Number: uint64(time.Now().UnixNano())},
	}}}
	observe := &flowpb.SubscribeRequest{Message: &flowpb.SubscribeRequest_Subscribe{Subscribe: &flowpb.MapSubscription{
		Map: 1, Name: o.mapName, Observe: true,
	}}}
	if err := errors.Join(stream.Send(hello), stream.Send(observe)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("subscribe: %w", err), client.Close())
	}
	return stream, client, nil
}

// record is the present record of a flow and a node.
type record struct {
	owner     string
	direction uint32
	value     *flowpb.FlowsValue
}

// records are the present records, by key. A key includes the origin: each boot of a node has its own sums.
type records struct {
	port  uint32
	flows map[string]record
}

// receive enters a batch, nil for other messages.
func (r *records) receive(b *flowpb.Batch) error {
	for _, d := range b.GetDeltas() {
		if r.port != 0 && d.GetKey().GetPort() != r.port {
			continue
		}
		key, err := proto.MarshalOptions{Deterministic: true}.Marshal(d.GetKey())
		if err != nil {
			return fmt.Errorf("read key: %w", err)
		}
		if d.GetOperation() == flowpb.Operation_OPERATION_DELETE {
			delete(r.flows, string(key))
			continue
		}
		r.flows[string(key)] = record{b.GetOwners()[d.GetOwner()].GetNode(), d.GetKey().GetDir(), d.GetValue()}
	}
	return nil
}
