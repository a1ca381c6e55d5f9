package dispatch

import (
	"io"
	"log/slog"
)

// newLogger writes text to stderr from the level of CNIBOX_LOG on: debug, info,
// warn (the default) or error.
func newLogger(stderr io.Writer, level string) *slog.Logger {
	l := slog.LevelWarn
	var bad error
	if level != "" {
		var parsed slog.Level
		if bad = parsed.UnmarshalText([]byte(level)); bad == nil {
			l = parsed
		}
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: l}))
	if bad != nil {
		log.Warn("CNIBOX_LOG is debug, info, warn or error", "value", level)
	}
	return log
}

// tagged marks every line with the role that wrote it.
func tagged(log *slog.Logger, role string) *slog.Logger { return log.With("role", role) }
