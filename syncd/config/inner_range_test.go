package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInnerRanges(t *testing.T) {
	path := write(t, `
map: [ct, 'lru=/sys/fs/bpf/lb/lru_maps[2-4]', 'one=/sys/fs/bpf/lb/other[7]']
deletes: [lru=owner, lru.3=any]
in-place: [ct=hook, lru=hook]
takeover-expiry: [lru=2m]
read-from: ['lru=lb*']
write-from: ['ct=lb*']
field: ['lru:state=volatile', 'ct:lru=volatile']
schema: [lru=lb.o]
drain-sums: [ct]
`)
	got, err := Load(path, flags(t, "--node-name=a"))
	if err != nil {
		t.Fatal(err)
	}
	want := got
	want.Maps = []string{
		"ct", "lru.2=/sys/fs/bpf/lb/lru_maps[2]", "lru.3=/sys/fs/bpf/lb/lru_maps[3]", "lru.4=/sys/fs/bpf/lb/lru_maps[4]", "one=/sys/fs/bpf/lb/other[7]",
	}
	want.Deletes = []string{"lru.2=owner", "lru.3=owner", "lru.4=owner", "lru.3=any"}
	want.InPlace = []string{"ct=hook", "lru.2=hook", "lru.3=hook", "lru.4=hook"}
	want.TakeoverExpiries = []string{"lru.2=2m", "lru.3=2m", "lru.4=2m"}
	want.ReadFrom, want.WriteFrom = []string{"lru.2=lb*", "lru.3=lb*", "lru.4=lb*"}, []string{"ct=lb*"}
	want.Fields = []string{"lru.2:state=volatile", "lru.3:state=volatile", "lru.4:state=volatile", "ct:lru=volatile"}
	want.Schemas, want.DrainSumsMaps = []string{"lru.2=lb.o", "lru.3=lb.o", "lru.4=lb.o"}, []string{"ct"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if !got.DeletesAny("lru.3") || got.DeletesAny("lru.2") {
		t.Errorf("deletes: any: got %t and %t for lru.3 and lru.2, want true and false", got.DeletesAny("lru.3"), got.DeletesAny("lru.2"))
	}
}

func TestInnerRangesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"map: ['lru=/x[4-2]']\n":                                                            "at most 1024 keys",
		"map: ['lru=/x[0-1024]']\n":                                                         "at most 1024 keys",
		"map: ['lru=/x[0-999999999]']\n":                                                    "at most 1024 keys",
		"map: ['/x[0-3]']\n":                                                                "write NAME=",
		"map:\n" + strings.Repeat("- 'lru=/x[0-1023]'\n", 100):                              "take more than 8 MiB",
		"map: ['lru=/x" + strings.Repeat("x", 9000) + "[0-1023]']\n":                        "take more than 8 MiB",
		"map: ['lru=/x[0-1023]']\nread-from:\n" + strings.Repeat("- lru=lb1\n", 100):        "take more than 8 MiB",
		"map: ['lru=/x[0-1023]']\nwrite-from: ['lru=" + strings.Repeat("lb,", 3000) + "b']": "take more than 8 MiB",
		"map: ['lru=/x[0-3]', 'lru.2=/y']\n":                                                "another map is called lru.2 already",
		"map: ['lru=/x[0-3]', 'other=/x[3]']\n":                                             "is the same kernel map",
		"map: ['lru=/x[0-3]']\ndeletes: [lru.4=any]\n":                                      "no map is called lru.4",
		"map: ['lru=/x[0-3]', 'x=/y']\ndrain-sums: [lru]\n":                                 "",
		"map: ['lru=/x[0-3]', 'lru=/y']\n":                                                  "a map and several inner maps",
		"map: ['lru=/x[0-3]']\nmetrics: [{map: lru}]\n":                                     `metrics of map "lru": the name stands for inner maps: name each of them (lru.0 to lru.3) in an entry with counters of its own`,
		"map: ['lru=/x[7-7]']\nmetrics: [{map: lru}]\n":                                     "name each of them (lru.7) in an entry",
		"map: ['lru=/x[0-1]']\n" + counterOf("lru.1"):                                       "",
		"map: ['" + strings.Repeat("a", 63) + "=/x[0-0]']\n":                                "is not usable",
	} {
		_, err := Load(write(t, text), flags(t, "--node-name=a"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", text, err, want)
		}
	}
}

// counterOf returns a setting metrics with a counter of a map.
func counterOf(name string) string {
	return "metrics: [{map: " + name + ", counters: [{name: sent_total, field: sent, help: Bytes sent.}]}]\n"
}
