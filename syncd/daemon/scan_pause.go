package daemon

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// MaxScanPause is the longest pause of scans.
const MaxScanPause = 24 * time.Hour

// ScanPause is a pause of the scans of all maps.
type ScanPause struct {
	Until time.Time `json:"until,omitzero"` // zero: scans are not paused
}

// servePauseScans pauses the scans of all maps for the time in the query.
func (a *admin) servePauseScans(w http.ResponseWriter, r *http.Request) {
	length, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil || length <= 0 || length > MaxScanPause {
		http.Error(w, fmt.Sprintf("the length of a pause is above 0, up to %s", MaxScanPause), http.StatusBadRequest)
		return
	}
	d, until := a.daemon, time.Now().Add(length)
	d.scanBudget.Pause(until)
	d.log.Warn("scans paused", append(callerFrom(r.Context()).attrs(), "until", until.Format(time.RFC3339),
		"hint", "`syncd scans resume` ends the pause")...)
	answer(d, func() ScanPause { return ScanPause{until} })(w, r)
}

// serveResumeScans ends a pause.
func (a *admin) serveResumeScans(w http.ResponseWriter, r *http.Request) {
	d := a.daemon
	d.scanBudget.Resume()
	d.log.Info("scans resumed", callerFrom(r.Context()).attrs()...)
	answer(d, func() ScanPause { return ScanPause{} })(w, r)
}

// PauseScans pauses the scans of all maps for a time above 0, up to MaxScanPause.
func (c *Client) PauseScans(ctx context.Context, length time.Duration) (ScanPause, error) {
	return ask[ScanPause](ctx, c, http.MethodPut, "/scans/pause?for="+url.QueryEscape(length.String()))
}

// ResumeScans ends a pause of scans.
func (c *Client) ResumeScans(ctx context.Context) (ScanPause, error) {
	return ask[ScanPause](ctx, c, http.MethodDelete, "/scans/pause")
}
