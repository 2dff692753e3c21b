package daemon

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"mapsync/syncd/kmap"
)

// KernelCall is the longest system call of a kind by which syncd read or wrote maps.
type KernelCall struct {
	Call           string  `json:"call"` // as the label call of mapsync_kernel_call_seconds
	LongestSeconds float64 `json:"longest_seconds"`
}

// serveKernelCalls answers with the longest calls of a window that ends now.
func (a *admin) serveKernelCalls(w http.ResponseWriter, r *http.Request) {
	window, err := time.ParseDuration(r.URL.Query().Get("window"))
	if err != nil || window <= 0 || window > kmap.MaxRecent {
		http.Error(w, fmt.Sprintf("window %q is not usable: give a time up to %s", r.URL.Query().Get("window"), kmap.MaxRecent), http.StatusBadRequest)
		return
	}
	answer(a.daemon, func() []KernelCall {
		list := []KernelCall{}
		for kind, longest := range kmap.LongestCalls(window) {
			if longest > 0 {
				list = append(list, KernelCall{kmap.CallKind(kind).String(), longest.Seconds()})
			}
		}
		return list
	})(w, r)
}

// KernelCalls returns the longest calls into the kernel within a window that ends now, by kind.
func (c *Client) KernelCalls(ctx context.Context, window time.Duration) ([]KernelCall, error) {
	return ask[[]KernelCall](ctx, c, http.MethodGet, "/kernel-calls?window="+url.QueryEscape(window.String()))
}
