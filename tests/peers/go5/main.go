// Scenarios of the official 5.x Go client, in the words of official_client.py. It prints JSON lines.
//
// This version of the client has no push consumer: `consume` receives, and acknowledges or gives back each message.
//
// Usage: program PROXY SCENARIO ARGUMENTS...
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	protocol "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const polling = 5 * time.Second

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(word string) int {
	value, err := strconv.Atoi(word)
	must(err)
	return value
}

func seconds(word string) time.Duration {
	return time.Duration(number(word)) * time.Second
}

func now() float64 {
	return float64(time.Now().UnixMilli()) / 1000
}

func tell(members map[string]interface{}) {
	line, err := json.Marshal(members)
	must(err)
	fmt.Println(string(line))
}

func describe(got *rocketmq.MessageView, asked float64) map[string]interface{} {
	return map[string]interface{}{
		"body": string(got.GetBody()), "attempt": got.GetDeliveryAttempt(), "tag": got.GetTag(),
		"asked": asked, "at": now(),
	}
}

func startProducer(proxy, topic string) rocketmq.Producer {
	config := &rocketmq.Config{Endpoint: proxy, Credentials: &credentials.SessionCredentials{}}
	checker := &rocketmq.TransactionChecker{Check: func(*rocketmq.MessageView) rocketmq.TransactionResolution {
		return rocketmq.COMMIT
	}}
	producer, err := rocketmq.NewProducer(config, rocketmq.WithTopics(topic), rocketmq.WithTransactionChecker(checker))
	must(err)
	must(producer.Start())
	return producer
}

func startConsumer(proxy, group, topic, expression string) rocketmq.SimpleConsumer {
	config := &rocketmq.Config{Endpoint: proxy, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
	filters := map[string]*rocketmq.FilterExpression{topic: rocketmq.NewFilterExpression(expression)}
	consumer, err := rocketmq.NewSimpleConsumer(
		config, rocketmq.WithAwaitDuration(polling), rocketmq.WithSubscriptionExpressions(filters),
	)
	must(err)
	must(consumer.Start())
	return consumer
}

// received receives once. Apache's proxy fails until it has the settings of a new client.
func received(consumer rocketmq.SimpleConsumer, count int, invisible time.Duration) []*rocketmq.MessageView {
	found, err := consumer.Receive(context.Background(), int32(count), invisible)
	status, refused := rocketmq.AsErrRpcStatus(err)
	switch {
	case err == nil:
		return found
	case refused && protocol.Code(status.Code) == protocol.Code_MESSAGE_NOT_FOUND:
	case refused && strings.Contains(status.Message, "settings"):
		time.Sleep(500 * time.Millisecond)
	case !refused && strings.Contains(err.Error(), "DEADLINE_EXCEEDED"):
	default:
		panic(err)
	}
	return nil
}

// send sends messages: plain, of one message group (fifo), delayed by seconds, or with a tag.
func send(proxy, topic string, count int, kinds []string) {
	producer := startProducer(proxy, topic)
	for at := 0; at < count; at++ {
		asked := now()
		message := &rocketmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("%s-%d", topic, at))}
		if len(kinds) > 0 {
			switch kinds[0] {
			case "fifo":
				message.SetMessageGroup("one")
			case "delay":
				message.SetDelayTimestamp(time.Now().Add(seconds(kinds[1])))
			case "tag":
				message.SetTag(kinds[1])
			}
		}
		receipts, err := producer.Send(context.Background(), message)
		must(err)
		tell(map[string]interface{}{"sent": receipts[0].MessageID, "asked": asked})
	}
	must(producer.GracefulStop())
}

// receive receives until `count` messages came, and acknowledges the first `acks` of them. It tells when each was
// asked for.
func receive(consumer rocketmq.SimpleConsumer, count int, invisible time.Duration, acks int, deadline time.Time) {
	for got := 0; got < count && time.Now().Before(deadline); {
		asked := now()
		for _, found := range received(consumer, 16, invisible) {
			tell(describe(found, asked))
			if got < acks {
				must(consumer.Ack(context.Background(), found))
			}
			got++
		}
	}
}

// change receives one message, changes its invisible time, and receives it again.
func change(consumer rocketmq.SimpleConsumer, first, second time.Duration, deadline time.Time) {
	for seen := 0; seen < 2 && time.Now().Before(deadline); {
		asked := now()
		for _, found := range received(consumer, 1, first) {
			seen++
			tell(describe(found, asked))
			if seen == 1 {
				must(consumer.ChangeInvisibleDuration(found, second))
			} else {
				must(consumer.Ack(context.Background(), found))
			}
		}
	}
}

// consume acknowledges messages, or gives them back after a second, until it had `count`.
func consume(consumer rocketmq.SimpleConsumer, count int, fails bool, deadline time.Time) {
	for got := 0; got < count && time.Now().Before(deadline); {
		asked := now()
		for _, found := range received(consumer, 1, 30*time.Second) {
			got++
			tell(describe(found, asked))
			if fails {
				must(consumer.ChangeInvisibleDuration(found, time.Second))
			} else {
				must(consumer.Ack(context.Background(), found))
			}
		}
	}
}

func sendHalf(producer rocketmq.Producer, topic, body string) rocketmq.Transaction {
	transaction := producer.BeginTransaction()
	message := &rocketmq.Message{Topic: topic, Body: []byte(body)}
	_, err := producer.SendWithTransaction(context.Background(), message, transaction)
	must(err)
	return transaction
}

// transactions sends one message that is committed, and one that is rolled back.
func transactions(proxy, topic string) {
	producer := startProducer(proxy, topic)
	for _, name := range []string{"commit", "rollback"} {
		transaction := sendHalf(producer, topic, name)
		if name == "commit" {
			must(transaction.Commit())
		} else {
			must(transaction.RollBack())
		}
		tell(map[string]interface{}{"done": name})
	}
	must(producer.GracefulStop())
}

func main() {
	proxy, scenario, words := os.Args[1], os.Args[2], os.Args[3:]
	switch scenario {
	case "send":
		send(proxy, words[0], number(words[1]), words[2:])
		return
	case "transactions":
		transactions(proxy, words[0])
		return
	}
	expression := "*"
	if scenario == "receive" && len(words) > 6 {
		expression = words[6]
	}
	consumer := startConsumer(proxy, words[0], words[1], expression)
	ends := func(word string) time.Time { return time.Now().Add(seconds(word)) }
	switch scenario {
	case "receive":
		receive(consumer, number(words[2]), seconds(words[3]), number(words[4]), ends(words[5]))
	case "change":
		change(consumer, seconds(words[2]), seconds(words[3]), ends(words[4]))
	case "check": // send a half message and leave it to the checker; receive it
		producer := startProducer(proxy, words[1])
		sendHalf(producer, words[1], "checked")
		receive(consumer, 1, 10*time.Second, 1, ends(words[2]))
		must(producer.GracefulStop())
	case "consume":
		consume(consumer, number(words[2]), words[3] == "fail", ends(words[4]))
	default:
		panic("unknown scenario: " + scenario)
	}
	must(consumer.GracefulStop())
}
