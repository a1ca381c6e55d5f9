package diff

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// call is one execution of a plugin, as a runtime would do it.
type call struct {
	verb              string
	conf              map[string]any
	container, ifname string
	netns, args       string
	noPath            bool
}

// cniError is the error object that a plugin prints.
type cniError struct {
	CNIVersion string `json:"cniVersion"`
	Code       int    `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details"`
}

func (e *cniError) Error() string { return fmt.Sprintf("code %d: %s %s", e.Code, e.Msg, e.Details) }

// silence is the code of an answer that is not an error object.
const silence = -1

// execute runs a plugin. A failure is a *cniError.
func (h *host) execute(c call) ([]byte, error) {
	conf, err := json.Marshal(c.conf)
	if err != nil {
		return nil, err
	}
	name, _ := c.conf["type"].(string)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errText bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(h.plugins, name))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &out, &errText
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.container, "CNI_NETNS=" + c.netns,
		"CNI_IFNAME=" + c.ifname, "CNI_ARGS=" + c.args, "CNI_PATH=" + h.plugins,
	}
	if c.noPath {
		cmd.Env = cmd.Env[:len(cmd.Env)-1]
	}
	err = cmd.Run()
	if err == nil {
		return out.Bytes(), nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return nil, err
	}
	said := &cniError{}
	if json.Unmarshal(out.Bytes(), said) != nil || said.Code == 0 {
		said = &cniError{Code: silence, Msg: err.Error(), Details: out.String() + errText.String()}
	}
	return nil, said
}

// decodeObject decodes a JSON object; an empty text is an empty object.
func decodeObject(text []byte) (map[string]any, error) {
	out := map[string]any{}
	if len(bytes.TrimSpace(text)) == 0 {
		return out, nil
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("decode %.200q: %w", text, err)
	}
	return out, nil
}
