from tests.stand_ins.answering import sync

if __name__ == "__main__":
    sync()
