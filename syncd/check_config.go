package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// settingsReport is the output of `syncd check --config FILE --json`.
type settingsReport struct {
	Usable   bool             `json:"usable"`
	Findings []daemon.Finding `json:"findings"`
	// Attach is the attach method that the settings take on this kernel. Maps are the maps of the settings that exist.
	// MapsProblem is why the report lacks them.
	Attach      string               `json:"attach,omitempty"`
	Maps        []daemon.MapCoverage `json:"maps"`
	MapsProblem string               `json:"maps_problem,omitempty"`
}

// errSettings ends a check of unusable settings. The report already contains the reasons.
var errSettings = usageError{errReported}

// checkSettings prints a report on the settings of a file and of flags. It returns errSettings if
// they are not usable.
func checkSettings(cmd *cobra.Command, file string, asJSON bool) error {
	r := settingsReport{Usable: true, Findings: []daemon.Finding{}, Maps: []daemon.MapCoverage{}}
	settings, err := config.Read(file, cmd.Flags())
	if err != nil {
		r.Findings = append(r.Findings, daemon.Finding{Severity: daemon.SeverityError, Problem: err.Error()})
	} else {
		r.Findings = daemon.Check(cmd.Context(), &settings)
	}
	r.Usable = !slices.ContainsFunc(r.Findings, func(f daemon.Finding) bool { return f.Severity == daemon.SeverityError })
	r.coverMaps(cmd.Context(), &settings)
	if asJSON {
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
	} else {
		err = r.print(cmd.OutOrStdout())
	}
	if err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	if !r.Usable {
		return errSettings
	}
	return nil
}

// coverMaps adds the maps of usable settings, or the problem. Settings whose attach method does not work are not usable.
func (r *settingsReport) coverMaps(ctx context.Context, settings *config.Config) {
	if !r.Usable {
		r.MapsProblem = "the settings cannot be used"
		return
	}
	attach, list, err := daemon.CoverSettings(ctx, settings)
	switch {
	case err != nil:
		r.MapsProblem = err.Error()
		if errors.Is(err, daemon.ErrAttach) {
			r.Usable = false
			r.Findings = append(r.Findings, daemon.Finding{Severity: daemon.SeverityError, Setting: "attach", Problem: err.Error() + "; " + daemon.HintNoHooks})
		}
		return
	case len(list) == 0:
		r.MapsProblem = "no map of the settings can be opened"
	default:
		r.Maps = list
	}
	r.Attach = string(attach)
}

func (r *settingsReport) print(out io.Writer) error {
	for _, f := range r.Findings {
		setting := f.Setting
		if setting != "" {
			setting += ": "
		}
		if _, err := fmt.Fprintf(out, "%s: %s%s\n", f.Severity, setting, f.Problem); err != nil {
			return err
		}
	}
	if err := r.printMaps(out); err != nil {
		return err
	}
	result := "the settings can be used"
	if !r.Usable {
		result = "the settings cannot be used"
	}
	_, err := fmt.Fprintln(out, result)
	return err
}

// printMaps prints the statements about maps, or why there are none.
func (r *settingsReport) printMaps(out io.Writer) error {
	if r.MapsProblem != "" {
		wrap(out, "the delays of changes to the maps are not stated: "+r.MapsProblem)
		return nil
	}
	if err := printMapCoverage(out, r.Maps, scanTimesTogether); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "with these settings, the attach method is %s\n\n", r.Attach)
	return err
}
