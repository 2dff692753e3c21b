package main

import (
	"encoding/json"
	"fmt"
	"io"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// settingsReport is the output of `syncd check --config FILE --json`.
type settingsReport struct {
	Usable   bool             `json:"usable"`
	Findings []daemon.Finding `json:"findings"`
}

// errSettings ends a check of unusable settings. The report already contains the reasons.
var errSettings = usageError{errReported}

// checkSettings prints a report on the settings of a file and of flags. It returns errSettings if
// they are not usable.
func checkSettings(cmd *cobra.Command, file string, asJSON bool) error {
	r := settingsReport{Usable: true, Findings: []daemon.Finding{}}
	settings, err := config.Read(file, cmd.Flags())
	if err != nil {
		r.Findings = append(r.Findings, daemon.Finding{Severity: daemon.SeverityError, Problem: err.Error()})
	} else {
		r.Findings = daemon.Check(&settings)
	}
	for _, f := range r.Findings {
		r.Usable = r.Usable && f.Severity != daemon.SeverityError
	}
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
	result := "the settings can be used"
	if !r.Usable {
		result = "the settings cannot be used"
	}
	_, err := fmt.Fprintln(out, result)
	return err
}
