package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
)

// proxied is one row: which proxy Go takes for a server in an environment; empty if none.
type proxied struct {
	Server      string            `json:"server"`
	Environment map[string]string `json:"environment"`
	Proxy       string            `json:"proxy"`
}

// proxies plays environments against http.ProxyFromEnvironment, which looks at its own once: each row is a process.
func proxies() []proxied {
	var rows []proxied
	row := func(server string, variables ...string) {
		environment := map[string]string{}
		for _, variable := range variables {
			name, value, _ := strings.Cut(variable, "=")
			environment[name] = value
		}
		command := exec.Command(os.Args[0], "proxy", server)
		command.Env = variables
		out := must(command.Output())
		rows = append(rows, proxied{server, environment, strings.TrimSpace(string(out))})
	}
	const proxy = "HTTPS_PROXY=http://proxy.example.com:3128"
	server, address := "https://api.example.com:6443", "https://10.0.0.1:6443"
	row(server)
	row(server, proxy)
	row(server, "https_proxy=http://proxy.example.com:3128")
	row(server, proxy, "https_proxy=http://other.example.com:3128")
	row(server, "HTTPS_PROXY=", "https_proxy=http://other.example.com:3128")
	row(server, "HTTP_PROXY=http://proxy.example.com:3128")
	row(server, "ALL_PROXY=http://proxy.example.com:3128")
	row("http://api.example.com:8080", "HTTP_PROXY=http://proxy.example.com:3128")
	row("http://api.example.com:8080", proxy)
	row(server, "HTTPS_PROXY=proxy.example.com:3128")
	row(server, "HTTPS_PROXY=proxy.example.com")
	row(server, "HTTPS_PROXY=https://proxy.example.com")
	row(server, "HTTPS_PROXY=socks5://proxy.example.com:1080")
	row(server, "HTTPS_PROXY=socks5h://proxy.example.com:1080")
	row(server, "HTTPS_PROXY=http://user:secret@proxy.example.com:3128")
	for _, without := range []string{
		"*", "example.com", ".example.com", "*.example.com", "api.example.com", "API.EXAMPLE.COM", "pi.example.com",
		"api.example.com:6443", "api.example.com:443", "example.org, api.example.com", "example.org,*", ".api.example.com", ",",
		"example.com.", "10.0.0.1",
	} {
		row(server, proxy, "NO_PROXY="+without)
	}
	row(server, proxy, "no_proxy=example.com")
	row(server, proxy, "NO_PROXY=example.org", "no_proxy=example.com")
	row("https://api.example.com", proxy, "NO_PROXY=api.example.com:443")
	for _, without := range []string{"10.0.0.1", "10.0.0.0/8", "10.0.0.1:6443", "10.0.0.1:443", "11.0.0.0/8", "10.", "10.0.0.1/32", "::ffff:10.0.0.1"} {
		row(address, proxy, "NO_PROXY="+without)
	}
	for _, without := range []string{"", "fd00::1", "[fd00::1]", "[fd00::1]:6443", "[fd00::1]:443", "fd00::/8", "fd01::/16"} {
		row("https://[fd00::1]:6443", proxy, "NO_PROXY="+without)
	}
	row("https://localhost:6443", proxy)
	row("https://127.0.0.1:6443", proxy)
	row("https://127.1.2.3:6443", proxy)
	row("https://[::1]:6443", proxy)
	row("https://a.localhost:6443", proxy)
	return rows
}

// proxyOf prints the proxy that Go takes for a server in the environment of this process.
func proxyOf(server string) {
	request := must(http.NewRequest(http.MethodGet, server, nil))
	if proxy := must(http.ProxyFromEnvironment(request)); proxy != nil {
		fmt.Println(proxy)
	}
}
