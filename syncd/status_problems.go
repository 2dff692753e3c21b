package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// maxAlike is how many problems with the same id are printed. An attacker can cause many.
const maxAlike = 8

// problemOutput is how problems are printed. all: each problem, also of many with the same id. documented: with the section of the
// documentation.
type problemOutput struct{ all, documented bool }

// print prints each problem with its remedy. A problem that concerns several maps in the same way is printed once.
func (o problemOutput) print(out io.Writer, list []problem.Problem) {
	printed := make(map[string]int)
	groups := group(list)
	for i := range groups {
		id := groups[i].ID
		if printed[id]++; o.all || printed[id] <= maxAlike {
			printProblem(out, &groups[i])
			if o.documented {
				wrap(out, "  documentation: "+groups[i].Documentation)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(printed)) {
		if n := printed[id] - maxAlike; !o.all && n > 0 {
			fmt.Fprintf(out, "%d more with the id %s: see syncd status --problems --all\n", n, id)
		}
	}
}

func printProblem(out io.Writer, p *problems) {
	subject := []string{p.ID}
	if len(p.maps) > 0 {
		subject = append(subject, "map "+daemon.MapNames(p.maps))
	}
	if p.Peer != "" {
		subject = append(subject, "peer "+p.Peer)
	}
	if p.Subject != "" {
		subject = append(subject, p.Subject)
	}
	wrap(out, fmt.Sprintf("%s %s, for %s: %s", strings.ToUpper(string(p.Severity)), strings.Join(subject, ", "), daemon.Ago(time.Since(p.Since)), p.Text))
	for _, line := range p.Details {
		wrap(out, "  "+line)
	}
	wrap(out, "  remedy: "+p.Remedy)
}

// problems are problems with the same text, about several maps.
type problems struct {
	problem.Problem
	maps []string
}

// group joins the problems that differ in the map only and have no details.
func group(list []problem.Problem) (all []problems) {
	type key struct{ id, severity, peer, subject, text string }
	at := make(map[key]int)
	for _, p := range list {
		k := key{p.ID, string(p.Severity), p.Peer, p.Subject, p.Text}
		i, known := at[k]
		if !known || len(p.Details) > 0 {
			i = len(all)
			at[k] = i
			all = append(all, problems{Problem: p})
		}
		if p.Map != "" {
			all[i].maps = append(all[i].maps, p.Map)
		}
	}
	return all
}
