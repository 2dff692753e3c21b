package handbook

import (
	"fmt"
	"strconv"
	"strings"
)

// Step is a group of commands on a page, with the output that the page shows for them.
type Step struct {
	// Section is the anchor of the step's section, and Line the line of its block in the file.
	Section string
	Line    int
	// Commands is the text to be executed by a shell.
	Commands string
	// Output is the output on the page. It has a meaning only if Shown is true. Compare defines which
	// differences are permitted.
	Output string
	Shown  bool
	// Shape compares the output by CompareShape, not by Compare. Steps does not set it.
	Shape bool
	// Retry permits repeated execution until the output agrees.
	Retry bool
	// Exit is the expected exit code of the first command that fails, or 0 if none fails.
	Exit int
}

// Steps returns the commands of the page's fenced blocks, in page order:
//
//   - a block "sh" is one step. A block "text" after it in the same section is its output.
//   - a block "console" has lines "$ COMMAND", each a step, followed by their output.
//
// The attributes of a block follow its language: "retry" sets Retry, "exit=N" sets Exit, and "skip"
// leaves the block out. Steps returns an error for other attributes, and for output without commands.
func (p *Page) Steps() (steps []Step, err error) {
	for i := range p.Sections {
		found, err := p.Sections[i].steps()
		if err != nil {
			return nil, err
		}
		steps = append(steps, found...)
	}
	return steps, nil
}

func (s *Section) steps() (steps []Step, err error) {
	for n, b := range s.Blocks {
		step, skip, err := b.step(s.Anchor())
		if err != nil {
			return nil, err
		}
		switch {
		case b.Language == "text":
			if n == 0 || s.Blocks[n-1].Language != "sh" {
				return nil, fmt.Errorf("line %d: block text has no block sh before it", b.Line)
			}
			if last := len(steps) - 1; last >= 0 && steps[last].Line == s.Blocks[n-1].Line { // that block runs
				steps[last].Output, steps[last].Shown = b.Text, true
			}
		case skip:
		case b.Language == "sh":
			step.Commands = b.Text
			steps = append(steps, step)
		default:
			found, err := b.console(step)
			if err != nil {
				return nil, err
			}
			steps = append(steps, found...)
		}
	}
	return steps, nil
}

// step returns a step with the attributes of the block, and whether the block is left out. All blocks
// of other languages are left out.
func (b *Block) step(section string) (step Step, skip bool, err error) {
	step = Step{Section: section, Line: b.Line}
	if b.Language != "sh" && b.Language != "text" && b.Language != "console" {
		return step, true, nil
	}
	for _, word := range b.Attributes {
		code, isExit := strings.CutPrefix(word, "exit=")
		switch {
		case word == "skip":
			skip = true
		case word == "retry":
			step.Retry = true
		case isExit:
			step.Exit, err = strconv.Atoi(code)
		default:
			err = fmt.Errorf("unknown attribute %q", word)
		}
		if err != nil {
			return step, false, fmt.Errorf("line %d: read attributes of block: %w", b.Line, err)
		}
	}
	return step, skip, nil
}

// console returns the steps of a block with prompts.
func (b *Block) console(common Step) (steps []Step, err error) {
	for line := range strings.Lines(b.Text) {
		if command, isCommand := strings.CutPrefix(line, "$ "); isCommand {
			step := common
			step.Commands, step.Shown = command, true
			steps = append(steps, step)
			continue
		}
		if len(steps) == 0 {
			return nil, fmt.Errorf("line %d: block console does not begin with a line \"$ COMMAND\"", b.Line)
		}
		steps[len(steps)-1].Output += line
	}
	return steps, nil
}
