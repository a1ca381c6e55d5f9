package dispatch

import "log/slog"

// NewLogger writes text to standard error from the level of CNIBOX_LOG on:
// debug, info, warn (the default) or error.
func NewLogger(p Process) *slog.Logger {
	level := p.getenv(envLog)
	l := slog.LevelWarn
	var bad error
	if level != "" {
		var parsed slog.Level
		if bad = parsed.UnmarshalText([]byte(level)); bad == nil {
			l = parsed
		}
	}
	log := slog.New(slog.NewTextHandler(p.Stderr, &slog.HandlerOptions{Level: l}))
	if bad != nil {
		log.Warn("CNIBOX_LOG is debug, info, warn or error", "value", level)
	}
	return log
}

// tagged marks every line with the role that wrote it.
func tagged(log *slog.Logger, role string) *slog.Logger { return log.With("role", role) }
