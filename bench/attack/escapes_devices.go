package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"google.golang.org/protobuf/encoding/protowire"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// devicesName is the name of a map whose keys are interfaces.
const devicesName = "devices"

// deviceDelta returns a delta of the devices map with the name of an interface.
func deviceDelta(dev string) *mapsyncv1.Delta {
	key := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), dev)
	return &mapsyncv1.Delta{Key: key, Version: versionAt(0), Operation: mapsyncv1.Operation_OPERATION_UPDATE}
}

// addDevices adds the devices map to all daemons, and permits observers. restore undoes both.
func (c *cluster) addDevices(ctx context.Context) (restore func() error, err error) {
	var pins []string
	restore = func() error {
		var errs []error
		for _, n := range c.nodes {
			errs = append(errs, n.configure(), n.reload(ctx))
		}
		for _, pin := range pins {
			errs = append(errs, os.Remove(pin))
		}
		return errors.Join(errs...)
	}
	for _, n := range c.nodes {
		pin := filepath.Join(c.dir, pinFolder, n.name+"-"+devicesName)
		if err := createDevices(pin); err != nil {
			return nil, errors.Join(err, restore())
		}
		pins = append(pins, pin)
		err := n.configureWith(map[string]any{
			"map":       []string{mapName + "=" + filepath.Join(c.dir, pinFolder, n.name), devicesName + "=" + pin},
			"field":     []string{devicesName + ":key.dev=ifindex"},
			"observers": []string{"x-observer*"},
		})
		if err = errors.Join(err, n.reload(ctx)); err != nil {
			return nil, errors.Join(err, restore())
		}
	}
	return restore, c.awaitConverged(ctx)
}

func (n *node) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer cancel()
	if _, err := n.client.Reload(ctx); err != nil {
		return fmt.Errorf("reload the settings of %s: %w", n.name, err)
	}
	return nil
}

// createDevices pins a new devices map.
func createDevices(pin string) error {
	dev := &btf.Struct{Name: "device", Size: 4, Members: []btf.Member{{Name: "dev", Type: &btf.Int{Name: "unsigned int", Size: 4, Encoding: btf.Unsigned}}}}
	count := &btf.Struct{Name: "count", Size: 8, Members: []btf.Member{{Name: "n", Type: &btf.Int{Name: "unsigned long long", Size: 8, Encoding: btf.Unsigned}}}}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: devicesName, Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 64, Key: dev, Value: count})
	if err != nil {
		return fmt.Errorf("create the map of devices: %w", err)
	}
	if err := m.Pin(pin); err != nil {
		return errors.Join(fmt.Errorf("pin the map of devices: %w", err), m.Close())
	}
	return m.Close()
}
