package redact_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/redact"
)

func TestJSON(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"nothing secret":       {`{ "type": "bridge",  "mtu": 1400 }`, `{ "type": "bridge",  "mtu": 1400 }`},
		"names":                {`{"Pass-Word":"x","client_secret":["y"],"a":{"API.Key":{"z":1}}}`, `{"Pass-Word":"REDACTED","a":{"API.Key":"REDACTED"},"client_secret":"REDACTED"}`},
		"numbers stay":         {`{"psk":1,"n":18446744073709551617}`, `{"n":18446744073709551617,"psk":"REDACTED"}`},
		"an escaped name":      {`{"\u0070sk":"x"}`, `{"psk":"REDACTED"}`},
		"JSON in a string":     {`{"delegate":"{\"token\":\"x\",\"mtu\":1}"}`, `{"delegate":"{\"mtu\":1,\"token\":\"REDACTED\"}"}`},
		"twice in a string":    {`{"a":"[\"{\\\"token\\\":1}\"]"}`, `{"a":"[\"{\\\"token\\\":\\\"REDACTED\\\"}\"]"}`},
		"arguments":            {`{"args":"K8S_POD_NAME=web;TOKEN=x"}`, `{"args":"K8S_POD_NAME=web;TOKEN=REDACTED"}`},
		"a URL":                {`{"endpoint":"https://me:pw@10.0.0.1:2379/v3"}`, `{"endpoint":"https://REDACTED@10.0.0.1:2379/v3"}`},
		"several URLs":         {`{"endpoints":"http://a/,http://me:pw@b,http://me:pw@c"}`, `{"endpoints":"http://a/,http://REDACTED@b,http://REDACTED@c"}`},
		"other separators":     {`{"options":"user=me password=x","b":"mtu=1\npsk=x"}`, `{"b":"mtu=REDACTED","options":"user=REDACTED"}`},
		"a variable":           {`{"env":[{"name":"DB_PASSWORD","value":"x"},{"name":"A","value":"y"},{"name":"token"}]}`, `{"env":[{"name":"DB_PASSWORD","value":"REDACTED"},{"name":"A","value":"y"},{"name":"token"}]}`},
		"a flag":               {`["--token","x","y","--token=x","z","token","y","--psk"]`, `["--token","REDACTED","y","--token=REDACTED","z","token","y","--psk"]`},
		"an at in a path":      {`{"endpoint":"https://10.0.0.1/a@b"}`, `{"endpoint":"https://10.0.0.1/a@b"}`},
		"not JSON":             {`{"type": "bridge"`, `{"type": "bridge"`},
		"not JSON and secret":  {`{"password": "x`, `REDACTED`},
		"two documents":        {`{"password": 1}{"password": "x"}`, `REDACTED`},
		"markup is not quoted": {`{"token":1,"a":"<b>"}`, `{"a":"<b>","token":"REDACTED"}`},
	} {
		got := string(redact.JSON([]byte(c.in)))
		if got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := redact.JSON([]byte(nested(`{"token":"hunter2"}`, 6))); strings.Contains(string(got), "hunter2") {
		t.Errorf("deep in strings: %s", got)
	}
}

// nested puts a text into a string of JSON n times.
func nested(text string, n int) string {
	for range n {
		b, _ := json.Marshal(map[string]string{"a": text})
		text = string(b)
	}
	return text
}

// FuzzJSON: a secret that JSON can express never remains, and the result is JSON if the input was.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"token":"hunter2"}`, `["a=b;psk=hunter2"]`, `{"a":"{\"token\":\"hunter2\"}"}`, `{"a":"http://u:hunter2@x"}`, `{"token":"hunter2"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out := redact.JSON(in)
		if json.Valid(in) && !json.Valid(out) && string(out) != redact.Placeholder {
			t.Errorf("%q became %q", in, out)
		}
		var v map[string]any
		if json.Unmarshal(out, &v) == nil {
			if s, is := v["token"].(string); is && s != redact.Placeholder {
				t.Errorf("%q became %q", in, out)
			}
		}
	})
}
