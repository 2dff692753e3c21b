package daemon

import (
	"mapsync/syncd/kmap"

	"github.com/prometheus/client_golang/prometheus"
)

// kernelCalls sends the durations of the calls of all maps.
func (s sink) kernelCalls() {
	for _, c := range kmap.Calls() {
		s <- prometheus.MustNewConstHistogram(kernelCalls, c.Count, c.Sum.Seconds(), c.Within, c.Kind.String())
	}
}

func (s sink) kernel(name string, a *attachment) {
	s.scans(name, a.scanner)
	s.drainSums(name, a.drainSums)
	st := a.syncer.Stats()
	s.counter(mapWrites, st.Written, name, "update")
	s.counter(mapWrites, st.Deleted, name, "delete")
	s.counter(mapWrites, st.Displaced, name, "displace")
	for cause, n := range map[string]uint64{
		"full": st.FailedFull, "memory": st.FailedMemory, "busy": st.FailedBusy, "other": st.FailedOther,
	} {
		s.counter(mapWriteFail, n, name, cause)
	}
	s.counter(mapRereads, st.Rereads, name)
	s.counter(deprecatedRereads, st.Rereads, name)
}

func (s sink) scans(name string, scanner *kmap.Scanner) {
	st := scanner.Stats()
	s.counter(scans, st.Scans-st.Urgent, name, "regular")
	s.counter(scans, st.Urgent, name, "urgent")
	s.counter(scanFailures, st.Failures, name)
	s.counter(scanEntries, st.Entries, name)
	s.counter(scanFound, st.Found, name)
	s.gauge(scanInterval, st.Interval.Seconds(), name)
	if st.Scans > 0 {
		s.gauge(scanSeconds, st.Last.Seconds(), name)
	}
}
