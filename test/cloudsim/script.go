package cloudsim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// scriptLine is an order that runs before the request of a number is answered; 0 is at the start.
type scriptLine struct {
	before uint64
	args   []string
}

// parseScript reads orders, one a line. "@3 break 429" runs before the third request is answered, a line without a number at the
// start. "#" begins a comment.
func parseScript(text string) ([]scriptLine, error) {
	var all []scriptLine
	var errs []error
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		args := strings.Fields(line)
		if len(args) == 0 {
			continue
		}
		var l scriptLine
		if number, ok := strings.CutPrefix(args[0], "@"); ok {
			n, err := strconv.ParseUint(number, 10, 64)
			if err != nil || n == 0 {
				errs = append(errs, fmt.Errorf("script: line %d: %.20q is not the number of a request: use @1 and on", i+1, args[0]))
				continue
			}
			l.before, args = n, args[1:]
		}
		if len(all) > 0 && l.before < all[len(all)-1].before {
			errs = append(errs, fmt.Errorf("script: line %d: it follows a line for a later request", i+1))
			continue
		}
		if _, _, _, err := parseCommand(args); err != nil {
			errs = append(errs, fmt.Errorf("script: line %d: %w", i+1, err))
			continue
		}
		l.args = args
		all = append(all, l)
	}
	return all, errors.Join(errs...)
}

// runScript runs the lines that are due.
func (s *Sim) runScript() error {
	var errs []error
	for len(s.script) > 0 && s.script[0].before <= s.counts.Requests {
		l := s.script[0]
		s.script = s.script[1:]
		if _, err := s.do(l.args); err != nil {
			errs = append(errs, fmt.Errorf("script: %s: %w", strings.Join(l.args, " "), err))
		}
	}
	return errors.Join(errs...)
}
