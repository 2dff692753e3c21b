package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"mapsync/internal/tool"
	"mapsync/syncd/latency"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"
)

// estimationTimer is the kernel's function in net/netfilter/ipvs/ip_vs_est.c.
const estimationTimer = "estimation_timer"

// measureTimer creates services, and measures the timer. The timer runs every two seconds. Kernels from 6.2 on have
// threads instead.
func measureTimer(ctx context.Context, services int, window time.Duration) (m measurement, err error) {
	tool.Progress("creating %d services of IPVS", services)
	handle, err := ipvs.New("")
	if err != nil {
		return m, fmt.Errorf("open IPVS (load the module ip_vs): %w", err)
	}
	defer handle.Close()
	defer handle.Flush() //nolint:errcheck // the machine ends
	for i := range services {
		if err := handle.NewService(service(i)); err != nil {
			return m, fmt.Errorf("create service %d: %w", i, err)
		}
	}
	probe, err := latency.Open()
	if err != nil {
		return m, err
	}
	defer probe.Close() //nolint:errcheck // only read
	if err := tool.Pause(ctx, window); err != nil {
		return m, err
	}
	timers, err := probe.Timers()
	if err != nil {
		return m, err
	}
	m.name = fmt.Sprintf("%s, %d services", estimationTimer, services)
	if i := slices.IndexFunc(timers, func(r latency.Runs) bool { return r.Name == estimationTimer }); i >= 0 {
		m.longest, m.runs = timers[i].Longest, timers[i].Runs
	}
	return m, nil
}

// service returns a service with an address of its own.
func service(i int) *ipvs.Service {
	return &ipvs.Service{
		Address: net.IPv4(10, 200, byte(i>>8), byte(i)).To4(), Port: 80, Protocol: unix.IPPROTO_TCP,
		AddressFamily: unix.AF_INET, SchedName: ipvs.RoundRobin, Netmask: 0xffffffff,
	}
}
