package config

// choices are the values of the settings that accept only some.
var choices = map[string][]string{
	"attach":           {"auto", "fexit", "kprobe", "syscall", "none"},
	"buffer":           {"ring", "perf"},
	"on-ready-timeout": {ReadyOpen, ReadyClosed},
	"log-level":        {"debug", "info", "warn", "error"},
	"log-format":       {"text", "json"},
}

// mapChoices are the values of the settings whose entries are MAP=VALUE.
var mapChoices = map[string][]string{
	"deletes":  {DeletesAny, DeletesOwner},
	"new-map":  {NewMapTable, NewMapMap},
	"clears":   {ClearsHold, ClearsReplicate},
	"in-place": {InPlaceHook, InPlaceScan},
}

// Choices returns the values that a setting accepts, nil if it accepts others, too. perMap reports that its entries are
// MAP=VALUE. The caller must not change the list.
func Choices(setting string) (values []string, perMap bool) {
	if values = choices[setting]; values != nil {
		return values, false
	}
	values = mapChoices[setting]
	return values, values != nil
}
