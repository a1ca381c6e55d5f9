package dispatch

import "log/slog"

// NewLogger returns a logger that writes text to p.Stderr. CNIBOX_LOG sets its lowest
// level: debug, info, warn (the default) or error.
func NewLogger(p Process) *slog.Logger { return newLogger(p, slog.LevelWarn) }

func newLogger(p Process, l slog.Level) *slog.Logger {
	level := getenv(p.Env, envLog)
	var bad error
	if level != "" {
		var parsed slog.Level
		if bad = parsed.UnmarshalText([]byte(level)); bad == nil {
			l = parsed
		}
	}
	log := slog.New(slog.NewTextHandler(p.Stderr, &slog.HandlerOptions{Level: l}))
	if bad != nil {
		log.Warn("CNIBOX_LOG is ignored: set it to debug, info, warn or error", "value", level)
	}
	return log
}

// tagged returns a logger that adds the role to every line.
func tagged(log *slog.Logger, role string) *slog.Logger { return log.With("role", role) }
