package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"slices"
	"time"

	"mapsync/internal/testcert"
)

const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Types and flags of HTTP/2 frames.
const (
	frameHeaders      byte = 1
	frameReset        byte = 3
	frameSettings     byte = 4
	framePing         byte = 6
	frameContinuation byte = 9

	flagEndHeaders byte = 4
)

// frame returns an HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	b := []byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// subscribeHeaders returns the header block that opens the stream of Subscribe, in HPACK without
// indexing.
func subscribeHeaders() []byte {
	b := []byte{0x83, 0x87} // method POST and scheme https, from the static table
	for _, h := range [][2]string{
		{":path", "/mapsync.v1.ReplicationService/Subscribe"},
		{":authority", "lb1"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		b = append(b, 0, byte(len(h[0])))
		b = append(append(b, h[0]...), byte(len(h[1])))
		b = append(b, h[1]...)
	}
	return b
}

// frameFlood returns an attack that writes frames until the daemon closes the connection. The
// connection uses a certificate of the CA. The attack opens a new connection when the old one ends.
// next returns the bytes that are written in round i.
func frameFlood(next func(i int) []byte) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		conf, err := c.tlsConfig(unusedName, testcert.Options{})
		if err != nil {
			return err
		}
		for i := 0; ctx.Err() == nil; i++ {
			raw, err := c.dial(ctx, c.nodes[i%3], grpcPort, i%16)
			if err != nil {
				sleep(ctx, 10*time.Millisecond)
				continue
			}
			conn := tls.Client(raw, conf)
			_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
			stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
			go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with the connection
			_, err = conn.Write(append([]byte(http2Preface), frame(frameSettings, 0, 0, nil)...))
			for round := 0; err == nil && round < 20_000 && ctx.Err() == nil; round++ {
				_, err = conn.Write(next(round))
			}
			stop()
			_ = raw.Close()
			sleep(ctx, 10*time.Millisecond)
		}
		return nil
	}
}

func settingsFrames(int) []byte {
	table := []byte{0, 1, 0, 0, 16, 0} // size of the header table
	return append(frame(frameSettings, 0, 0, slices.Repeat(table, 100)), frame(framePing, 0, 0, make([]byte, 8))...)
}

func resetFrames(i int) []byte {
	stream := uint32(2*i + 1)
	return append(frame(frameHeaders, flagEndHeaders, stream, subscribeHeaders()), frame(frameReset, 0, stream, []byte{0, 0, 0, 8})...)
}

func headerFrames(i int) []byte {
	block := append([]byte{0, 1, 'a', 0x7f, 0xe1, 0x7e}, slices.Repeat([]byte{'a'}, 16352)...)
	if i == 0 {
		return frame(frameHeaders, 0, 1, subscribeHeaders())
	}
	return frame(frameContinuation, 0, 1, block)
}

func largeFrames(i int) []byte {
	return frame(byte(i%10), 0, uint32(i%3), make([]byte, 1<<20))
}
