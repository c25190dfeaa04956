/* A DNS server on 127.0.0.1:53 that knows one name, for tests of the image in a network of its own:
 *
 *   names NAME ADDRESS
 *
 * Answers the IPv4 address to those who ask for NAME, "no such name" for all others. Prints "ready" when it listens, then
 * each name that it is asked for. Ends when it is killed.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { HEADER = 12, TYPE_A = 1 };

/* Reads the name at the beginning of the question; returns the length of the question with type and class, or 0. */
static size_t read_question(const unsigned char *question, size_t length, char *name, size_t room, int *type) {
  size_t at = 0, written = 0;
  while (at < length && question[at] != 0) {
    size_t label = question[at];
    if (label > 63 || at + 1 + label >= length || written + label + 2 > room) return 0;
    if (written > 0) name[written++] = '.';
    memcpy(name + written, question + at + 1, label);
    written += label;
    at += 1 + label;
  }
  name[written] = 0;
  if (at + 5 > length) return 0;
  *type = question[at + 1] << 8 | question[at + 2];
  return at + 5;
}

int main(int count, char **arguments) {
  unsigned char packet[600];
  char name[256];
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(53)}, peer;
  struct in_addr address;
  int type, server = socket(AF_INET, SOCK_DGRAM, 0);
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (count != 3 || inet_pton(AF_INET, arguments[2], &address) != 1) return 2;
  if (server < 0 || bind(server, (struct sockaddr *)&own, sizeof own) != 0) return 1;
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts("ready");
  for (;;) {
    socklen_t size = sizeof peer;
    ssize_t length = recvfrom(server, packet, 512, 0, (struct sockaddr *)&peer, &size);
    if (length < HEADER) continue;
    size_t question = read_question(packet + HEADER, (size_t)length - HEADER, name, sizeof name, &type);
    if (question == 0) continue;
    puts(name);
    int known = strcmp(name, arguments[1]) == 0, answers = known && type == TYPE_A;
    size_t end = HEADER + question;
    packet[2] = 0x85; /* An answer of the authority. */
    packet[3] = known ? 0x80 : 0x83;
    memcpy(packet + 4, (unsigned char[]){0, 1, 0, (unsigned char)answers, 0, 0, 0, 0}, 8);
    if (answers) {
      memcpy(packet + end, (unsigned char[]){0xc0, HEADER, 0, TYPE_A, 0, 1, 0, 0, 0, 60, 0, 4}, 12);
      memcpy(packet + end + 12, &address, 4);
      end += 16;
    }
    sendto(server, packet, end, 0, (struct sockaddr *)&peer, size);
  }
}
