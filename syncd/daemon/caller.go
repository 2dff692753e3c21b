package daemon

import (
	"context"
	"log/slog"
	"net"

	"golang.org/x/sys/unix"
)

// caller is the process at the other end of a connection to the control socket.
type caller struct {
	uid   uint32
	pid   int32 // 0: in another PID namespace
	known bool  // the kernel returned both
}

type callerKey struct{}

// withCaller is the ConnContext of the control socket's server. The kernel recorded the
// credentials of the client when it connected, so that the client cannot change them.
func withCaller(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, callerKey{}, callerOf(conn))
}

func callerOf(conn net.Conn) (c caller) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return c
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return c
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if failed = err; err == nil {
			c = caller{uid: cred.Uid, pid: cred.Pid, known: true}
		}
	})
	if err != nil || failed != nil {
		return caller{}
	}
	return c
}

// attrs returns the log attributes of a request by the caller.
func (c caller) attrs() []any {
	if !c.known {
		return []any{slog.String("caller", "unknown")}
	}
	return []any{slog.Uint64("caller_uid", uint64(c.uid)), slog.Int64("caller_pid", int64(c.pid))}
}

// callerFrom returns the caller of a request.
func callerFrom(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}
