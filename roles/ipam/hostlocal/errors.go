package hostlocal

import "errors"

// ErrDirectory means that a reference plugin's data directory cannot be taken
// over or written; the text names the file.
var ErrDirectory = errors.New("unusable host-local directory")
