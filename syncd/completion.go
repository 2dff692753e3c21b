package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/schema"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completionTimeout is the time for which the completion of a command line waits for the daemon.
const completionTimeout = 500 * time.Millisecond

// names returns the names that the daemon has, or none if it does not answer in time.
func (c *connection) names(ctx context.Context) daemon.Names {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	names, err := daemon.NewClient(c.socket).Names(ctx)
	if err != nil {
		return daemon.Names{} // the shell shows no errors
	}
	return names
}

// completeMap completes a single argument with the maps of the daemon.
func (c *connection) completeMap(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd.Context()).Maps, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes a flag with names of the daemon. args are the arguments of the command.
func (c *connection) completeFlag(cmd *cobra.Command, flag string, choose func(n *daemon.Names, args []string) []string) {
	register(cmd, flag, func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names := c.names(cmd.Context())
		return choose(&names, args), cobra.ShellCompDirectiveNoFileComp
	})
}

// completeCondition completes a condition with the fields of the map in args.
func (c *connection) completeCondition(cmd *cobra.Command, flag string) {
	register(cmd, flag, func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if strings.ContainsAny(typed, "=!<>") {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		fields := slices.Clone(c.names(cmd.Context()).Fields[strings.Join(args, " ")])
		for i := range fields {
			fields[i] += "="
		}
		return fields, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}

// valueFields returns the fields of the value of a map, without value.
func valueFields(n *daemon.Names, args []string) (fields []string) {
	for _, field := range n.Fields[strings.Join(args, " ")] {
		if name, ok := strings.CutPrefix(field, "value."); ok {
			fields = append(fields, name)
		}
	}
	return fields
}

// register registers the completion of a flag. Each flag is registered once.
func register(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag does not exist, or is registered twice
	}
}

// Flags that are names of files, by the ends of these names, and of directories.
var (
	fileFlags = map[string][]string{
		"config": {"yaml", "yml"}, "control-socket": nil, "gossip-key-file": nil, "output": {"proto"},
		"tls-cert": nil, "tls-key": nil, "tls-ca": nil, "tls-crl": nil,
	}
	directoryFlags = []string{"state-dir", "pin-dir"}
)

// completeFlags registers the completion of the flags of a command that need no daemon, and of its subcommands: files,
// directories and values of settings.
func completeFlags(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		values, perMap := config.Choices(f.Name)
		ends, isFile := fileFlags[f.Name]
		switch {
		case f.Name == "profile":
			register(cmd, f.Name, cobra.FixedCompletions(config.Profiles(), cobra.ShellCompDirectiveDefault)) // or a file
		case perMap:
			register(cmd, f.Name, completeMapChoice(values))
		case values != nil:
			register(cmd, f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		case isFile && ends != nil:
			register(cmd, f.Name, cobra.FixedCompletions(ends, cobra.ShellCompDirectiveFilterFileExt))
		case isFile:
			register(cmd, f.Name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
		case slices.Contains(directoryFlags, f.Name):
			register(cmd, f.Name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
		}
	})
}

// completeMapChoice completes MAP=VALUE with the maps of the flag --map, and with the values.
func completeMapChoice(values []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
		if name, _, ok := strings.Cut(typed, "="); ok {
			for _, value := range values {
				list = append(list, name+"="+value)
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		}
		maps, _ := cmd.Flags().GetStringArray("map") // of run and check
		for _, s := range maps {
			m, err := config.ParseMap(s)
			if offer := m.Name + "="; err == nil && !slices.Contains(list, offer) { // cobra parses the flags twice
				list = append(list, offer)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completeObject completes an argument with object files, and the flag --map with the maps of that file.
func completeObject(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return []string{"o"}, cobra.ShellCompDirectiveFilterFileExt
	}
	register(cmd, "map", func(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) > 0 && strings.HasSuffix(args[0], ".o") {
			list, _ := schema.FromObject(args[0]) // the shell shows no errors
			for _, s := range list {
				names = append(names, s.Map)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}
