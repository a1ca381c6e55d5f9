// Package browser opens pages in chromium-headless-shell and reports what a person sees there. It speaks the DevTools protocol over two
// pipes: https://chromedevtools.github.io/devtools-protocol/.
package browser

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/test/await"
)

//go:embed faults.js
var faults string

// Page is a page in a browser of its own. Its methods fail the test if the browser refuses.
type Page struct {
	t        testing.TB
	requests *os.File
	answers  *bufio.Reader
	session  string
	last     int
	// loaded is the number of pages that were loaded, messages are the errors of these and what they wrote to the console.
	loaded   int
	messages []string
}

// message is a request, an answer or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// Open opens a page. The browser ends with the test. Short runs have no browser.
func Open(t testing.TB, url string) *Page {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-full runs it, in chromium")
	}
	path, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Fatal("install chromium-headless-shell, as 'make test-full' does")
	}
	requestsIn, requests := pipe(t)
	answers, answersIn := pipe(t)
	cmd := exec.Command(path, "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir())
	cmd.ExtraFiles = []*os.File{requestsIn, answersIn}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it starts processes that would remain
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(stderr.String())
		}
	})
	_ = requestsIn.Close()
	_ = answersIn.Close()
	if err := answers.SetReadDeadline(await.Deadline()); err != nil {
		t.Fatal(err)
	}
	p := &Page{t: t, requests: requests, answers: bufio.NewReader(answers)}
	var target struct {
		ID string `json:"targetId"`
	}
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		Session string `json:"sessionId"`
	}
	p.call("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached)
	p.session = attached.Session
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.call(domain+".enable", nil, nil)
	}
	p.call("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	for p.loaded == 0 {
		p.read()
	}
	return p
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}

// call makes a request and decodes its result, unless result is nil.
func (p *Page) call(method string, params, result any) {
	p.t.Helper()
	p.last++
	raw, err := json.Marshal(params)
	if err != nil {
		p.t.Fatal(err)
	}
	request := message{ID: p.last, Session: p.session, Method: method}
	if params != nil {
		request.Params = raw
	}
	text, err := json.Marshal(request)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.requests.Write(append(text, 0)); err != nil {
		p.t.Fatal(err)
	}
	for {
		m := p.read()
		if m.ID != p.last {
			continue
		}
		if m.Error != nil {
			p.t.Fatalf("%s: %s", method, m.Error)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				p.t.Fatal(err)
			}
		}
		return
	}
}

// read reads one message.
func (p *Page) read() message {
	p.t.Helper()
	text, err := p.answers.ReadBytes(0)
	if err != nil {
		p.t.Fatalf("read the browser's answer: %v", err)
	}
	var m message
	if err := json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m); err != nil {
		p.t.Fatal(err)
	}
	switch m.Method {
	case "Page.loadEventFired":
		p.loaded++
	case "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded":
		p.messages = append(p.messages, string(m.Params))
	}
	return m
}

// Messages returns the page's errors and what it wrote to the console.
func (p *Page) Messages() []string { return p.messages }

// Show gives the page a width and a scheme of colours, "light" or "dark".
func (p *Page) Show(width int, scheme string) {
	p.t.Helper()
	const height = 800
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Text returns the value of an expression in JavaScript, which is a text.
func (p *Page) Text(expression string) string {
	p.t.Helper()
	var answer struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	p.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &answer)
	if answer.Exception != nil {
		p.t.Fatalf("%s: %s", expression, answer.Exception)
	}
	return fmt.Sprint(answer.Result.Value)
}

// Wait waits until an expression in JavaScript is true.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	await.Until(p.t, func() bool { return p.Text(expression) == "true" }, func() string { return expression + " stays false: " + p.Text("document.body.outerHTML") })
}

// Press presses keys, such as "Tab", "Enter" and "ArrowDown".
func (p *Page) Press(keys ...string) {
	p.t.Helper()
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": map[string]int{"Tab": 9, "Enter": 13, "ArrowUp": 38, "ArrowDown": 40}[key]}
		if key == "Enter" {
			down["text"] = "\r"
		}
		p.call("Input.dispatchKeyEvent", down, nil)
		p.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key}, nil)
	}
}

// Faults returns what a person cannot read: texts that leave their box or the page, a page that scrolls sideways, boxes on
// one another, and texts whose contrast is below 4.5 (WCAG 2.1, 1.4.3).
func (p *Page) Faults() []string {
	p.t.Helper()
	if text := p.Text(faults); text != "" {
		return strings.Split(text, "\n")
	}
	return nil
}

// Picture writes the page to a file, from its top on. A height of 0 is the whole page.
func (p *Page) Picture(file string, width, height int) {
	p.t.Helper()
	if height == 0 {
		if _, err := fmt.Sscan(p.Text("document.documentElement.scrollHeight"), &height); err != nil {
			p.t.Fatal(err)
		}
	}
	var shot struct {
		Data string `json:"data"`
	}
	p.call("Page.captureScreenshot", map[string]any{
		"captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
	}, &shot)
	b, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
}
