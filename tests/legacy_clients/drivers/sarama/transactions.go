// Sarama since it has transactional producers.
package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

func init() { commands["transaction"] = transaction }

// Attempts to begin, the first included: Sarama counts them and knows no timeout.
const attempts = 10

func transaction(config *sarama.Config, opts options) {
	config.Producer.Transaction.ID = opts.spans[0]
	config.Producer.Transaction.Retry.Max = attempts
	config.Producer.Transaction.Retry.Backoff = opts.timeout() / attempts
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	began := time.Now()
	_, err := sarama.NewAsyncProducer(opts.brokers(), config)
	if err == nil {
		fmt.Println("ready")
		return
	}
	var code sarama.KError
	if !errors.As(err, &code) {
		fail(err.Error())
	}
	fmt.Printf("%.6f\t%d\n", time.Since(began).Seconds(), int16(code))
}
