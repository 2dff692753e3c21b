package guest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestFrames(t *testing.T) {
	var pipe bytes.Buffer
	conn := NewConn(&pipe)
	long := bytes.Repeat([]byte("0123456789"), MaxPayload/4)
	if n, err := (Stream{conn, FrameFile, []byte{3}}).Write(long); err != nil || n != len(long) {
		t.Fatalf("Write: got %d bytes, error %v, want %d and nil", n, err, len(long))
	}
	if err := conn.WriteJSON(FrameExit, Exit{Code: 5}); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for {
		kind, payload, err := conn.Read()
		if err != nil {
			t.Fatal(err)
		}
		if kind == FrameExit {
			if string(payload) != `{"Code":5,"Signal":"","Err":""}` {
				t.Errorf("exit frame: got %s, want code 5 without signal or error", payload)
			}
			break
		}
		if kind != FrameFile || payload[0] != 3 {
			t.Fatalf("frame: got type %q, prefix %d, want %q and 3", kind, payload[0], FrameFile)
		}
		got = append(got, payload[1:]...)
	}
	if !bytes.Equal(got, long) {
		t.Errorf("stream: got %d bytes, want %d", len(got), len(long))
	}
	if _, _, err := conn.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("Read at the end: got %v, want an error with io.EOF", err)
	}
}

func TestBadFramesAreRefused(t *testing.T) {
	if err := NewConn(new(bytes.Buffer)).Write(FrameStdout, make([]byte, MaxPayload+1)); err == nil {
		t.Error("Write of a payload that is too long: got nil, want an error")
	}
	for in, want := range map[string]string{
		"o\xff\xff\xff\xff": "at most",
		"o\x00":             "header",
		"o\x00\x00\x00\x05": "EOF",
	} {
		if _, _, err := NewConn(bytes.NewBufferString(in)).Read(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", in, err, want)
		}
	}
}
