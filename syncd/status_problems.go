package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// printProblems prints each problem with its remedy. A problem that concerns several maps in the same way is printed once.
func printProblems(out io.Writer, list []problem.Problem) {
	for _, each := range group(list) {
		p := &each.Problem
		subject := []string{p.ID}
		if len(each.maps) > 0 {
			subject = append(subject, "map "+daemon.MapNames(each.maps))
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
