package daemon

import (
	"fmt"
	"strings"

	"mapsync/syncd/problem"
)

// maxNamed is the maximum number of maps that are named with one reason.
const maxNamed = 5

// reasons are the reasons why maps are not ready, each once, in the order in which they were
// added.
type reasons []struct {
	text string
	maps []string
}

func (r *reasons) add(name, text string) {
	text = problem.OneLine(text)
	for i := range *r {
		if (*r)[i].text == text {
			(*r)[i].maps = append((*r)[i].maps, name)
			return
		}
	}
	*r = append(*r, struct {
		text string
		maps []string
	}{text, []string{name}})
}

func (r reasons) texts() (list []string) {
	for _, each := range r {
		list = append(list, MapNames(each.maps)+": "+each.text)
	}
	return list
}

// MapNames returns the names of maps as text. It names at most the first five.
func MapNames(maps []string) string {
	names := strings.Join(maps[:min(len(maps), maxNamed)], ", ")
	if more := len(maps) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more maps", more)
	}
	return names
}
