// What the C++ peers have in common: the arguments, what a request costs, the listening socket, and the
// end that comes with the end of the standard input. They do what examples/echo/connection.rs does.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace echo {

// Read and answered at once.
constexpr std::size_t BUFFER = 16 * 1024;

// From one look at the clock to the next, unless this thread has been interrupted.
constexpr std::chrono::nanoseconds LONGEST_LOOK{500};

// Uses so much of the CPU's time, not the clock's: what passes while another thread has the CPU is no work done.
inline void burn(std::chrono::nanoseconds time) {
    std::chrono::nanoseconds burned{0};
    auto last = std::chrono::steady_clock::now();
    while (burned < time) {
        const auto now = std::chrono::steady_clock::now();
        burned += std::min<std::chrono::nanoseconds>(now - last, LONGEST_LOOK);
        last = now;
    }
}

// What a request costs besides being echoed.
struct Cost {
    // Burned for every request.
    std::chrono::microseconds work{0};
    // Slept for a request that begins with `B`.
    std::chrono::microseconds block{0};

    // Does what the request costs; it has at least one byte.
    void pay(const char *request) const {
        if (block.count() > 0 && request[0] == 'B') {
            std::this_thread::sleep_for(block);
        }
        if (work.count() > 0) {
            burn(work);
        }
    }
};

// Said in one sentence, with exit code 2.
struct BadArgument : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Arguments {
    int threads = 4;
    Cost cost;
    // Empty for TCP on a free port of 127.0.0.1.
    std::string unix_path;

    static Arguments parse(int count, char **words) {
        Arguments arguments;
        for (int at = 1; at < count; at += 2) {
            const std::string option = words[at];
            if (option != "--threads" && option != "--work-us" && option != "--block-us"
                && option != "--unix") {
                throw BadArgument(option + ": expected --threads, --work-us, --block-us or --unix");
            }
            if (at + 1 == count) {
                throw BadArgument(option + ": a value is missing");
            }
            const std::string value = words[at + 1];
            if (option == "--threads") {
                arguments.threads = static_cast<int>(number(option, value, 1, 1024));
            } else if (option == "--work-us") {
                arguments.cost.work = std::chrono::microseconds(number(option, value, 0, MINUTE));
            } else if (option == "--block-us") {
                arguments.cost.block = std::chrono::microseconds(number(option, value, 0, MINUTE));
            } else if (value.empty() || value.size() >= sizeof(sockaddr_un::sun_path)) {
                throw BadArgument(option + ": the path is empty or too long for a socket");
            } else {
                arguments.unix_path = value;
            }
        }
        return arguments;
    }

private:
    static constexpr long MINUTE = 60'000'000;

    static long number(const std::string &option, const std::string &value, long least, long most) {
        long parsed = 0;
        const char *end = value.data() + value.size();
        const auto [stopped, error] = std::from_chars(value.data(), end, parsed);
        if (error != std::errc() || stopped != end || parsed < least || parsed > most) {
            throw BadArgument(option + " " + value + ": expected a number from "
                              + std::to_string(least) + " to " + std::to_string(most));
        }
        return parsed;
    }
};

// A non-blocking socket that listens.
class Listener {
public:
    explicit Listener(const Arguments &arguments) : path_(arguments.unix_path) {
        if (is_unix()) {
            sockaddr_un address{};
            address.sun_family = AF_UNIX;
            path_.copy(address.sun_path, sizeof address.sun_path - 1);
            listen_on(reinterpret_cast<const sockaddr *>(&address), sizeof address);
        } else {
            sockaddr_in address{};
            address.sin_family = AF_INET;
            address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            listen_on(reinterpret_cast<const sockaddr *>(&address), sizeof address);
        }
    }

    Listener(const Listener &) = delete;
    Listener &operator=(const Listener &) = delete;

    ~Listener() {
        ::close(handle_);
        if (is_unix()) {
            ::unlink(path_.c_str());
        }
    }

    bool is_unix() const { return !path_.empty(); }

    int handle() const { return handle_; }

    // Tells whoever started the program where to connect.
    void announce() const {
        if (is_unix()) {
            std::cout << path_ << std::endl;
            return;
        }
        sockaddr_in address{};
        socklen_t size = sizeof address;
        if (::getsockname(handle_, reinterpret_cast<sockaddr *>(&address), &size) != 0) {
            throw std::system_error(errno, std::generic_category(), "getsockname");
        }
        std::cout << "127.0.0.1:" << ntohs(address.sin_port) << std::endl;
    }

private:
    void listen_on(const sockaddr *address, socklen_t size) {
        handle_ = ::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (handle_ == -1 || ::bind(handle_, address, size) != 0
            || ::listen(handle_, SOMAXCONN) != 0) {
            const std::system_error error(errno, std::generic_category(), "cannot listen");
            ::close(handle_);
            throw error;
        }
    }

    std::string path_;
    int handle_ = -1;
};

// Where there are no descriptors left the listener stays ready: better wait for one than spin.
inline void pause_if_out_of_descriptors(int error) {
    if (error == EMFILE || error == ENFILE) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

// Calls `work` on so many threads, `stop` at the end of the standard input, and waits for the threads.
template <class Work, class Stop>
void run_until_input_ends(int threads, Work work, Stop stop) {
    std::vector<std::thread> pool;
    for (int started = 0; started < threads; ++started) {
        pool.emplace_back(work);
    }
    char ignored[64];
    ssize_t got = 0;
    do {
        got = ::read(STDIN_FILENO, ignored, sizeof ignored);
    } while (got > 0 || (got == -1 && errno == EINTR));
    stop();
    for (std::thread &thread : pool) {
        thread.join();
    }
}

// The whole program but for `serve(arguments, listener)`; returns the exit code.
template <class Serve>
int main(int count, char **words, Serve serve) {
    // A peer that has gone away is an error of the write.
    std::signal(SIGPIPE, SIG_IGN);
    const std::string_view path = count > 0 ? words[0] : "echo";
    const std::string_view program = path.substr(path.rfind('/') + 1);
    try {
        const Arguments arguments = Arguments::parse(count, words);
        const Listener listener(arguments);
        serve(arguments, listener);
        return 0;
    } catch (const BadArgument &error) {
        std::cerr << program << ": " << error.what() << std::endl;
        return 2;
    } catch (const std::exception &error) {
        std::cerr << program << ": " << error.what() << std::endl;
        return 1;
    }
}

} // namespace echo
