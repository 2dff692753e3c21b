package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"

	"github.com/spf13/cobra"
)

func newProfiles() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "profiles",
		Short: "List the profiles of load balancers",
		Long: `List the profiles: the settings for the maps of one load balancer, with the roles of their fields.
The setting profile uses one by its name, or one in a file by its path. Settings of the node take
precedence over those of a profile.
Exit code 0: listed.`,
		Example: `  syncd profiles
  syncd profiles show loxilb
  syncd profiles check loxilb`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []*config.Profile
			for _, name := range config.Profiles() {
				p, err := config.ReadProfile(name)
				if err != nil {
					return err
				}
				list = append(list, p)
			}
			if err := listProfiles(cmd.OutOrStdout(), list, asJSON); err != nil {
				return fmt.Errorf("list profiles: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(newProfilesShow(), newProfilesCheck())
	return cmd
}

func listProfiles(out io.Writer, list []*config.Profile, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(list)
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "PROFILE\tMAPS\tFOR")
	for _, p := range list {
		fmt.Fprintf(w, "%s\t%d\t%s\n", p.Name, len(p.Maps), p.For)
	}
	return w.Flush()
}

func newProfilesShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME|FILE",
		Short: "Print a profile",
		Long: `Print the file of a profile: which deployments gain from replication, what it cannot do, and the
settings. A copy of the file can be changed, and used by its path.
Exit code 0: printed. 2: no such profile.`,
		Example: `  syncd profiles show loxilb
  syncd profiles show loxilb > /etc/mapsync/loxilb.yaml`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := config.ReadProfile(args[0])
			if err != nil {
				return usageError{err}
			}
			if _, err := io.WriteString(cmd.OutOrStdout(), p.Text()); err != nil {
				return fmt.Errorf("print profile: %w", err)
			}
			return nil
		},
	}
	completeProfiles(cmd)
	return cmd
}

// profileReport is the output of `syncd profiles check --json`.
type profileReport struct {
	Profile  string           `json:"profile"`
	Usable   bool             `json:"usable"`
	Maps     []profileMap     `json:"maps"`
	Findings []daemon.Finding `json:"findings"`
}

// profileMap is a map of a profile on this host.
type profileMap struct {
	Name     string `json:"name"`
	Ref      string `json:"ref"`
	Optional bool   `json:"optional,omitempty"`
	Present  bool   `json:"present"`
}

func newProfilesCheck() *cobra.Command {
	var asJSON bool
	var settings string
	cmd := &cobra.Command{
		Use:   "check NAME|FILE",
		Short: "Compare a profile with the maps of this host",
		Long: `Compare a profile with the maps of this host, for example after an upgrade of the load balancer:
the sizes of entries, the fields and their roles, and fields that seem to need another role.
Exit code 0: the profile fits, maps that may be absent may be absent. 1: a map is missing.
2: no such profile, or it does not fit.`,
		Example: `  syncd profiles check loxilb
  syncd profiles check loxilb --config /etc/mapsync/syncd.yaml`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := config.ReadProfile(args[0])
			if err != nil {
				return usageError{err}
			}
			r, err := checkProfile(p, args[0], settings)
			if err != nil {
				return usageError{err}
			}
			if err := r.print(cmd.OutOrStdout(), asJSON); err != nil {
				return fmt.Errorf("print report: %w", err)
			}
			switch {
			case !r.Usable:
				return errSettings
			case r.missing():
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&settings, "config", "", "settings `file` of a node, which takes precedence over the profile")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	completeProfiles(cmd)
	return cmd
}

func completeProfiles(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return config.Profiles(), cobra.ShellCompDirectiveDefault
	}
}

// checkProfile compares a profile with the maps of this host. arg is how the command names it, and file has the settings of a node.
func checkProfile(p *config.Profile, arg, file string) (*profileReport, error) {
	c, err := config.ReadWithProfile(file, arg)
	if err != nil {
		return nil, err
	}
	r := &profileReport{Profile: p.Name}
	var names []string
	for _, s := range c.MapsOf(p) {
		m, err := config.ParseMap(s)
		if err != nil {
			return nil, err
		}
		found := profileMap{Name: m.Name, Ref: m.Ref, Optional: c.IsOptional(m.Name)}
		if ref, err := kmap.ParseRef(m.Ref); err == nil {
			if raw, err := kmap.Resolve(ref, kmap.AnyOwner); err == nil {
				found.Present = true
				raw.Close()
			}
		}
		names, r.Maps = append(names, m.Name), append(r.Maps, found)
	}
	r.Findings = daemon.CheckMaps(&c, names)
	for _, m := range r.Maps {
		if !m.Present {
			r.Findings = slices.DeleteFunc(r.Findings, func(f daemon.Finding) bool { return strings.HasPrefix(f.Problem, m.Name+": ") })
		}
	}
	r.Usable = !slices.ContainsFunc(r.Findings, func(f daemon.Finding) bool { return f.Severity == daemon.SeverityError })
	return r, nil
}

// missing reports whether a map is absent that may not be.
func (r *profileReport) missing() bool {
	return slices.ContainsFunc(r.Maps, func(m profileMap) bool { return !m.Present && !m.Optional })
}

func (r *profileReport) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MAP\tREF\tON THIS HOST")
	for _, m := range r.Maps {
		state := "missing"
		switch {
		case m.Present:
			state = "present"
		case m.Optional:
			state = "absent (optional)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", m.Name, m.Ref, state)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, f := range r.Findings {
		wrap(out, fmt.Sprintf("%s %s: %s", f.Severity, f.Setting, f.Problem))
	}
	text := "the profile fits"
	switch {
	case !r.Usable:
		text = "the profile does not fit: copy it with `syncd profiles show`, correct it, and use its path"
	case r.missing():
		text = "a map is missing: start the load balancer, or list the map in optional-map"
	}
	_, err := fmt.Fprintln(out, text)
	return err
}
