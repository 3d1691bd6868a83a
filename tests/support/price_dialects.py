"""The same bars as many programs and sites write them: the files of the table in dtml/README.md."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

SYMBOLS = ("AAA", "LOW", "ZZZ")
FIELDS = {
    "Adj Close": "adj_close",
    "Close": "close",
    "High": "high",
    "Low": "low",
    "Open": "open",
    "Volume": "volume",
}
US_DATE = "%m/%d/%Y"
EUROPEAN_DATE = "%d/%m/%Y"
ISO_DATE = "%Y-%m-%d"


def bars() -> pd.DataFrame:
    """Return the bars of three stocks on 17 sessions, with a dividend and a split."""
    days = pd.bdate_range("2024-02-26", periods=17)
    tables = []
    for place, symbol in enumerate(SYMBOLS):
        close = np.round(101.37 + 13.11 * place + np.sin(np.arange(17) + place), 2)
        table = pd.DataFrame({"date": days, "symbol": symbol, "open": np.round(close - 0.37, 2)})
        table = table.assign(high=np.round(close + 1.03, 2), low=np.round(close - 1.09, 2))
        volume = 1_030.0 * (np.arange(17) + 7 * (place + 1))
        table = table.assign(close=close, adj_close=np.round(close * 0.97, 4), volume=volume)
        tables.append(table.assign(dividend=0.0, split=1.0))
    together = pd.concat(tables, ignore_index=True)
    together.loc[5, "dividend"] = 0.31
    together.loc[23, "split"] = 2.0
    return together


@dataclass(frozen=True)
class Written:
    """A way to write bars.

    - dialect: its table in `dialects.toml`; None for our own layout;
    - write: writes them into a folder and returns the path for --prices;
    - lacks: our columns that it cannot hold;
    - remark: what the remark on the files contains; empty where there is none;
    - meant: makes the bars that it holds of those it was given, where it cannot hold these.
    """

    dialect: str | None
    write: Callable[[pd.DataFrame, Path], Path]
    lacks: tuple[str, ...]
    remark: str
    meant: Callable[[pd.DataFrame], pd.DataFrame] = pd.DataFrame.copy


ACTIONS = ("dividend", "split")
ADJUSTED = ("adj_close", *ACTIONS)
CLOSES = (*ADJUSTED, "volume")
CAPITALS = "date=Date, open=Open, high=High, low=Low, close=Close, volume=Volume"


def one_file(table: pd.DataFrame, folder: Path, columns: str, date_format: str = ISO_DATE) -> Path:
    """Write a file of these columns, `close=Price` for our close under the header Price."""
    pairs = (column.partition("=") for column in columns.split(", "))
    headers = {ours: theirs or ours for ours, _, theirs in pairs}
    written = table.assign(date=table["date"].dt.strftime(date_format))
    written[list(headers)].rename(columns=headers).to_csv(folder / "prices.csv", index=False)
    return folder / "prices.csv"


def by_stock(
    table: pd.DataFrame, folder: Path, columns: str, date_format: str = ISO_DATE, name: str = "{}"
) -> Path:
    """Write a file for each stock."""
    for symbol, rows in table.groupby("symbol"):
        one_file(rows, folder, columns, date_format).rename(folder / f"{name.format(symbol)}.csv")
    return folder


def download(table: pd.DataFrame) -> pd.DataFrame:
    """Return what yfinance's download does: fields and tickers in two rows, dates in the index."""
    renamed = table.rename(columns={name: field for field, name in FIELDS.items()})
    wide = renamed.pivot(index="date", columns="symbol", values=list(FIELDS))
    wide.columns.names = ["Price", "Ticker"]
    wide.index.name = "Date"
    return wide


def yfinance_csv(table: pd.DataFrame, folder: Path) -> Path:
    download(table).to_csv(folder / "prices.csv")
    return folder / "prices.csv"


def yfinance_grouped_by_ticker(table: pd.DataFrame, folder: Path) -> Path:
    download(table).swaplevel(axis=1).sort_index(axis=1).to_csv(folder / "prices.csv")
    return folder / "prices.csv"


def yfinance_without_labels(table: pd.DataFrame, folder: Path) -> Path:
    wide = download(table)
    wide.columns.names = [None, None]
    wide.to_csv(folder / "prices.csv")
    return folder / "prices.csv"


def yfinance_parquet(table: pd.DataFrame, folder: Path) -> Path:
    download(table).to_parquet(folder / "prices.parquet")
    return folder / "prices.parquet"


def yfinance_one_ticker(table: pd.DataFrame, folder: Path) -> Path:
    for symbol, rows in table.groupby("symbol"):
        download(rows).to_csv(folder / f"{symbol}.csv")
    return folder


def yfinance_history(table: pd.DataFrame, folder: Path) -> Path:
    midnights = table["date"].dt.tz_localize("America/New_York").astype(str)
    columns = CAPITALS.replace("date", "midnight") + ", adj_close=Adj Close, dividend=Dividends"
    return by_stock(table.assign(midnight=midnights), folder, f"{columns}, split=Stock Splits")


def stooq_of_one_stock(table: pd.DataFrame, folder: Path) -> Path:
    """Write the table that a stock's page offers, under the stock's symbol."""
    return by_stock(table, folder, CAPITALS)


def stooq(table: pd.DataFrame, folder: Path) -> Path:
    columns = "symbol=<TICKER>, per=<PER>, date=<DATE>, time=<TIME>, open=<OPEN>, high=<HIGH>, "
    columns += "low=<LOW>, close=<CLOSE>, volume=<VOL>, openint=<OPENINT>"
    return one_file(table.assign(per="D", time="000000", openint=0), folder, columns, "%Y%m%d")


def stooq_folders(table: pd.DataFrame, folder: Path) -> Path:
    """Write a folder of folders of .txt files, as in Stooq's archive."""
    for symbol, rows in table.groupby("symbol"):
        inner = folder / "daily" / str(symbol)[0]
        inner.mkdir(parents=True)
        stooq(rows, inner).rename(inner / f"{symbol}.txt")
    return folder


def in_thousands(table: pd.DataFrame) -> pd.DataFrame:
    """Return bars with prices above 1,000, which are written with a mark between thousands."""
    dear = table.copy()
    for name in ("open", "high", "low", "close"):
        dear[name] = (dear[name] + 1000).round(2)
    return dear


def with_prices_as(table: pd.DataFrame, told: str) -> pd.DataFrame:
    """The newest bars first, their prices told in a way."""
    prices = ["open", "high", "low", "close"]
    told_prices = {name: table[name].map(told.format) for name in prices}
    return table.assign(**told_prices).sort_values("date", ascending=False)


def investing(table: pd.DataFrame, folder: Path, date_format: str = US_DATE) -> Path:
    written = with_prices_as(in_thousands(table), "{:,.2f}").assign(change="0.51%")
    written["volume"] = (written["volume"] / 1000).map("{:.2f}K".format)
    columns = "date=Date, close=Price, open=Open, high=High, low=Low, volume=Vol., change=Change %"
    return by_stock(written, folder, columns, date_format, "{} Historical Data")


def investing_in_europe(table: pd.DataFrame, folder: Path) -> Path:
    return investing(table, folder, EUROPEAN_DATE)


def alpha_vantage_unadjusted(table: pd.DataFrame, folder: Path) -> Path:
    return by_stock(
        table, folder, "date=timestamp, open, high, low, close, volume", name="daily_{}"
    )


def alpha_vantage(table: pd.DataFrame, folder: Path) -> Path:
    columns = "date=timestamp, open, high, low, close, adj_close=adjusted_close, volume, "
    columns += "dividend=dividend_amount, split=split_coefficient"
    return by_stock(table, folder, columns, name="daily_adjusted_{}")


def eodhd(table: pd.DataFrame, folder: Path) -> Path:
    return by_stock(table, folder, f"{CAPITALS}, adj_close=Adjusted_close")


def tiingo(table: pd.DataFrame, folder: Path) -> Path:
    columns = "date, close, high, low, open, volume, adj_close=adjClose, dividend=divCash, "
    return by_stock(table, folder, f"{columns}split=splitFactor", "%Y-%m-%dT00:00:00.000Z")


def polygon(table: pd.DataFrame, folder: Path) -> Path:
    """Write a packed file for each day, as in the flat files."""
    midnight = table["date"].dt.tz_localize("America/New_York")
    written = table.assign(window_start=midnight.dt.as_unit("ns").astype("int64"), transactions=31)
    written = written.rename(columns={"symbol": "ticker"})
    columns = ["ticker", "volume", "open", "close", "high", "low", "window_start", "transactions"]
    for day, rows in written.groupby("date"):
        rows[columns].to_csv(folder / f"{day:%Y-%m-%d}.csv.gz", index=False)
    return folder


def nasdaq(table: pd.DataFrame, folder: Path) -> Path:
    written = with_prices_as(table, "${:,.2f}")
    written["volume"] = written["volume"].map("{:,.0f}".format)
    columns = "date=Date, close=Close/Last, volume=Volume, open=Open, high=High, low=Low"
    return by_stock(written, folder, columns, US_DATE)


def kaggle(table: pd.DataFrame, folder: Path) -> Path:
    return one_file(table, folder, "date, open, high, low, close, volume, symbol=Name")


def tushare(table: pd.DataFrame, folder: Path) -> Path:
    written = table.assign(volume=(table["volume"] / 100).map("{:.2f}".format), change=0.5)
    columns = "symbol=ts_code, date=trade_date, open, high, low, close, change, volume=vol"
    return one_file(written, folder, columns, "%Y%m%d")


QLIB = "symbol, date, open, close, high, low, volume, factor"


def adjusted_already(table: pd.DataFrame) -> pd.DataFrame:
    """Return bars as Qlib means its own: the close is the adjusted one."""
    return table.assign(adj_close=table["close"])


def qlib(table: pd.DataFrame, folder: Path) -> Path:
    return one_file(table.assign(factor=0.5), folder, QLIB)


def qlib_folder(table: pd.DataFrame, folder: Path) -> Path:
    """Write a file for each stock, as Qlib's own dump of CSVs reads them."""
    return by_stock(table.assign(factor=0.5), folder, QLIB)


def qlib_features(table: pd.DataFrame, folder: Path) -> Path:
    """Write what `D.features` returns."""
    columns = "symbol=instrument, date=datetime, open=$open, close=$close, high=$high, low=$low, "
    columns += "volume=$volume, factor=$factor"
    return one_file(table.assign(factor=0.5), folder, columns)


def krx(table: pd.DataFrame, folder: Path, encoding: str = "euc-kr") -> Path:
    columns = "date=일자, close=종가, open=시가, high=고가, low=저가, volume=거래량"
    by_stock(table, folder, columns, "%Y/%m/%d")
    for file in folder.glob("*.csv"):
        file.write_text(file.read_text(encoding="utf-8"), encoding=encoding)
    return folder


def krx_in_utf8(table: pd.DataFrame, folder: Path) -> Path:
    return krx(table, folder, "utf-8")


def crsp(table: pd.DataFrame, folder: Path) -> Path:
    """Write prices before a split of 2, below 0 on a day without a trade."""
    written = table.assign(permno=10001 + table["symbol"].map(SYMBOLS.index), factor=2.0)
    for name in ("open", "high", "low", "close"):
        written[name] = written[name] * 2
    written["volume"] /= 2
    written.loc[7, "close"] *= -1
    columns = "permno=PERMNO, date, symbol=TICKER, low=BIDLO, high=ASKHI, close=PRC, volume=VOL, "
    return one_file(written, folder, f"{columns}open=OPENPRC, factor=CFACPR", "%Y%m%d")


def closes_alone(table: pd.DataFrame) -> pd.DataFrame:
    """Return bars of which the close is every price; LOW, a price too, has another name."""
    others = dict.fromkeys(("open", "high", "low"), table["close"])
    return table.assign(symbol=table["symbol"].replace("LOW", "LLL"), **others)


def wide_csv(table: pd.DataFrame, folder: Path) -> Path:
    renamed = closes_alone(table)
    closes = renamed.pivot(index="date", columns="symbol", values="close")
    closes.to_csv(folder / "prices.csv")
    return folder / "prices.csv"


def wide_parquet(table: pd.DataFrame, folder: Path) -> Path:
    closes = closes_alone(table).pivot(index="date", columns="symbol", values="close")
    closes.index.name = None
    closes.to_parquet(folder / "prices.parquet")
    return folder / "prices.parquet"


def long_closes(table: pd.DataFrame, folder: Path) -> Path:
    return one_file(closes_alone(table), folder, "date, symbol, close")


def ours(table: pd.DataFrame, folder: Path) -> Path:
    table.to_parquet(folder / "prices.parquet")
    return folder / "prices.parquet"


def ours_by_stock(table: pd.DataFrame, folder: Path) -> Path:
    return by_stock(table, folder, ", ".join(table.columns.drop("symbol")))


OWN = None
CLOSES_ALONE = "open, high and low are the close"
# By the name in the table of dtml/README.md.
DIALECTS = {
    "our own, one table": Written(OWN, ours, (), ""),
    "our own, a file per stock": Written(OWN, ours_by_stock, (), ""),
    "our own, closes alone": Written(OWN, long_closes, CLOSES, CLOSES_ALONE, closes_alone),
    "yfinance `download`, several tickers": Written(
        "yfinance", yfinance_csv, ACTIONS, "yfinance, 3 stocks (no dividends)"
    ),
    "yfinance `download`, by ticker": Written(
        "yfinance", yfinance_grouped_by_ticker, ACTIONS, "yfinance, 3 stocks (no dividends)"
    ),
    "yfinance `download`, without labels": Written(
        "yfinance", yfinance_without_labels, ACTIONS, "yfinance, 3 stocks (no dividends)"
    ),
    "yfinance `download`, one ticker": Written(
        "yfinance", yfinance_one_ticker, ACTIONS, "yfinance, 3 files (no dividends)"
    ),
    "yfinance `download`, parquet": Written(
        "yfinance", yfinance_parquet, ACTIONS, "yfinance, 3 stocks (no dividends)"
    ),
    "yfinance `history`": Written(OWN, yfinance_history, (), ""),
    "Stooq, one table": Written("stooq", stooq, ADJUSTED, "Stooq, 3 stocks"),
    "Stooq, archive": Written("stooq", stooq_folders, ADJUSTED, "Stooq, 3 files"),
    "Stooq, page of a stock": Written(OWN, stooq_of_one_stock, ADJUSTED, ""),
    "Investing.com, American dates": Written(
        "investing", investing, ADJUSTED, "Investing.com, 3 files", in_thousands
    ),
    "Investing.com, European dates": Written(
        "investing", investing_in_europe, ADJUSTED, "Investing.com, 3 files", in_thousands
    ),
    "Alpha Vantage, adjusted": Written(
        "alpha_vantage", alpha_vantage, (), "Alpha Vantage, 3 files"
    ),
    "Alpha Vantage, daily": Written(
        "alpha_vantage", alpha_vantage_unadjusted, ADJUSTED, "Alpha Vantage, 3 files"
    ),
    "EODHD": Written("eodhd", eodhd, ACTIONS, "EODHD, 3 files"),
    "Tiingo": Written("tiingo", tiingo, (), "Tiingo, 3 files"),
    "Polygon's flat files": Written("polygon", polygon, ADJUSTED, "Polygon's flat files, 17 files"),
    "Nasdaq.com": Written("nasdaq", nasdaq, ADJUSTED, "Nasdaq.com, 3 files"),
    "Kaggle's S&P 500": Written("kaggle_sp500", kaggle, ADJUSTED, "Kaggle's S&P 500, 3 stocks"),
    "Tushare": Written("tushare", tushare, ADJUSTED, "Tushare, 3 stocks"),
    "Qlib, one table": Written(
        "qlib", qlib, ACTIONS, "its prices are adjusted for dividends already", adjusted_already
    ),
    "Qlib, a file per stock": Written(
        "qlib", qlib_folder, ACTIONS, "Qlib, 3 files", adjusted_already
    ),
    "Qlib, `D.features`": Written(
        "qlib_features", qlib_features, ACTIONS, "Qlib's features, 3 stocks", adjusted_already
    ),
    "KRX, EUC-KR": Written("krx", krx, ADJUSTED, "KRX, 3 files"),
    "KRX, UTF-8": Written("krx", krx_in_utf8, ADJUSTED, "KRX, 3 files"),
    "CRSP": Written("crsp", crsp, ADJUSTED, "CRSP, 3 stocks"),
    "a column of closes per stock, CSV": Written(
        "wide", wide_csv, CLOSES, CLOSES_ALONE, closes_alone
    ),
    "a column of closes per stock, parquet": Written(
        "wide", wide_parquet, CLOSES, CLOSES_ALONE, closes_alone
    ),
}
