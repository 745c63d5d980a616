// A client for test_clients_compiled.py: net/http with its defaults. Prints as JSON what it saw.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
)

func read(response *http.Response, err error) (int, map[string]interface{}) {
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	said := map[string]interface{}{}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &said); err != nil {
			log.Fatal(err)
		}
	}
	return response.StatusCode, said
}

func main() {
	base := os.Getenv("BASE")
	out := map[string]interface{}{}
	_, out["json"] = read(http.Get(base + "/json"))
	// A body of unknown length: chunked over HTTP/1.1.
	body := io.MultiReader(strings.NewReader(strings.Repeat("x", 50000)), strings.NewReader(strings.Repeat("x", 50000)))
	_, out["upload"] = read(http.Post(base+"/upload", "application/octet-stream", body))

	response, err := http.Get(base + "/events")
	if err != nil {
		log.Fatal(err)
	}
	events := []string{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if lines.Text() != "" {
			events = append(events, lines.Text())
			read(http.Get(fmt.Sprintf("%s/ack/%d", base, len(events)-1)))
		}
	}
	out["events"] = events

	status, denied := read(http.Get(base + "/denied"))
	out["denied"] = []interface{}{status, denied["error"].(map[string]interface{})["message"]}
	_, err = http.Get("https://elsewhere.test/")
	// Go says what stands behind the status code, and no code.
	out["elsewhere"] = strings.Replace(fmt.Sprint(err), "Forbidden (seamgate: no_rule_matched)", "403", 1)
	json.NewEncoder(os.Stdout).Encode(out)
}
