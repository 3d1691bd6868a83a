"""The same bars as many programs and sites write them."""

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

    - write: writes them into a folder and returns the path for --prices;
    - lacks: our columns that it cannot hold;
    - title: as what the files are read; empty for our own layout.
    """

    write: Callable[[pd.DataFrame, Path], Path]
    lacks: tuple[str, ...]
    title: str


ACTIONS = ("dividend", "split")
ADJUSTED = ("adj_close", *ACTIONS)


def by_stock(
    table: pd.DataFrame, folder: Path, name: str, columns: dict[str, str], date_format: str
) -> Path:
    """Write a file for each stock, of these columns under these headers."""
    for symbol, rows in table.groupby("symbol"):
        written = rows.assign(date=rows["date"].dt.strftime(date_format))
        written = written[list(columns)].rename(columns=columns)
        written.to_csv(folder / name.format(symbol), index=False)
    return folder


def one_file(table: pd.DataFrame, folder: Path, columns: dict[str, str], date_format: str) -> Path:
    written = table.assign(date=table["date"].dt.strftime(date_format))
    written[list(columns)].rename(columns=columns).to_csv(folder / "prices.csv", index=False)
    return folder / "prices.csv"


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
    headers = {name: field for field, name in FIELDS.items()}
    headers |= {"dividend": "Dividends", "split": "Stock Splits"}
    for symbol, rows in table.groupby("symbol"):
        dated = rows.assign(Date=rows["date"].dt.tz_localize("America/New_York"))
        written = dated.drop(columns=["date", "symbol"]).rename(columns=headers)
        written.to_csv(folder / f"{symbol}.csv", index=False)
    return folder


def stooq(table: pd.DataFrame, folder: Path) -> Path:
    written = table.assign(per="D", time="000000", openint=0)
    names = {
        "symbol": "TICKER",
        "per": "PER",
        "date": "DATE",
        "time": "TIME",
        "open": "OPEN",
        "high": "HIGH",
        "low": "LOW",
        "close": "CLOSE",
        "volume": "VOL",
        "openint": "OPENINT",
    }
    headers = {name: f"<{header}>" for name, header in names.items()}
    return one_file(written, folder, headers, "%Y%m%d")


def stooq_folders(table: pd.DataFrame, folder: Path) -> Path:
    """Write a folder of folders of .txt files, as in Stooq's archive."""
    for symbol, rows in table.groupby("symbol"):
        inner = folder / "daily" / str(symbol)[0]
        inner.mkdir(parents=True)
        stooq(rows, inner).rename(inner / f"{symbol}.txt")
    return folder


def investing(table: pd.DataFrame, folder: Path) -> Path:
    newest_first = table.sort_values("date", ascending=False)
    written = newest_first.assign(change="0.51%")
    written["volume"] = (written["volume"] / 1000).map("{:.2f}K".format)
    for name in ("open", "high", "low", "close"):
        written[name] = (written[name] + 1000).map("{:,.2f}".format)
    headers = {
        "date": "Date",
        "close": "Price",
        "open": "Open",
        "high": "High",
        "low": "Low",
        "volume": "Vol.",
        "change": "Change %",
    }
    return by_stock(written, folder, "{} Historical Data.csv", headers, US_DATE)


def alpha_vantage(table: pd.DataFrame, folder: Path) -> Path:
    headers = {
        "date": "timestamp",
        "open": "open",
        "high": "high",
        "low": "low",
        "close": "close",
        "adj_close": "adjusted_close",
        "volume": "volume",
        "dividend": "dividend_amount",
        "split": "split_coefficient",
    }
    return by_stock(table, folder, "daily_adjusted_{}.csv", headers, "%Y-%m-%d")


def eodhd(table: pd.DataFrame, folder: Path) -> Path:
    headers = {name: name.capitalize() for name in ("date", "open", "high", "low", "close")}
    headers |= {"adj_close": "Adjusted_close", "volume": "Volume"}
    return by_stock(table, folder, "{}.csv", headers, "%Y-%m-%d")


def tiingo(table: pd.DataFrame, folder: Path) -> Path:
    headers = {name: name for name in ("date", "close", "high", "low", "open", "volume")}
    headers |= {"adj_close": "adjClose", "dividend": "divCash", "split": "splitFactor"}
    return by_stock(table, folder, "{}.csv", headers, "%Y-%m-%dT00:00:00.000Z")


def polygon(table: pd.DataFrame, folder: Path) -> Path:
    """Write a packed file for each day, as in the flat files."""
    midnight = table["date"].dt.tz_localize("America/New_York")
    written = table.assign(window=midnight.dt.as_unit("ns").astype("int64"), transactions=31)
    headers = {
        "symbol": "ticker",
        "volume": "volume",
        "open": "open",
        "close": "close",
        "high": "high",
        "low": "low",
        "window": "window_start",
        "transactions": "transactions",
    }
    for day, rows in written.groupby("date"):
        of_day = rows[list(headers)].rename(columns=headers)
        of_day.to_csv(folder / f"{day:%Y-%m-%d}.csv.gz", index=False)
    return folder


def nasdaq(table: pd.DataFrame, folder: Path) -> Path:
    written = table.sort_values("date", ascending=False)
    for name in ("open", "high", "low", "close"):
        written[name] = written[name].map("${:,.2f}".format)
    written["volume"] = written["volume"].map("{:,.0f}".format)
    headers = {
        "date": "Date",
        "close": "Close/Last",
        "volume": "Volume",
        "open": "Open",
        "high": "High",
        "low": "Low",
    }
    return by_stock(written, folder, "{}.csv", headers, US_DATE)


def kaggle(table: pd.DataFrame, folder: Path) -> Path:
    headers = {name: name for name in ("date", "open", "high", "low", "close", "volume")}
    return one_file(table, folder, {**headers, "symbol": "Name"}, "%Y-%m-%d")


def tushare(table: pd.DataFrame, folder: Path) -> Path:
    written = table.assign(volume=(table["volume"] / 100).map("{:.2f}".format), change=0.5)
    headers = {
        "symbol": "ts_code",
        "date": "trade_date",
        "open": "open",
        "high": "high",
        "low": "low",
        "close": "close",
        "change": "change",
        "volume": "vol",
    }
    return one_file(written, folder, headers, "%Y%m%d")


def krx(table: pd.DataFrame, folder: Path) -> Path:
    headers = {
        "date": "일자",
        "close": "종가",
        "open": "시가",
        "high": "고가",
        "low": "저가",
        "volume": "거래량",
    }
    by_stock(table, folder, "{}.csv", headers, "%Y/%m/%d")
    for file in folder.glob("*.csv"):
        file.write_bytes(file.read_text(encoding="utf-8").encode("euc-kr"))
    return folder


def crsp(table: pd.DataFrame, folder: Path) -> Path:
    """Write prices before a split of 2, below 0 on a day without a trade."""
    written = table.assign(permno=10001, factor=2.0)
    written["permno"] += written["symbol"].map(SYMBOLS.index)
    for name in ("open", "high", "low", "close"):
        written[name] = written[name] * 2
    written["volume"] /= 2
    written.loc[7, "close"] *= -1
    headers = {
        "permno": "PERMNO",
        "date": "date",
        "symbol": "TICKER",
        "low": "BIDLO",
        "high": "ASKHI",
        "close": "PRC",
        "volume": "VOL",
        "open": "OPENPRC",
        "factor": "CFACPR",
    }
    return one_file(written, folder, headers, "%Y%m%d")


def wide_csv(table: pd.DataFrame, folder: Path) -> Path:
    closes = table.pivot(index="date", columns="symbol", values="close")
    closes.rename(columns={"LOW": "LLL"}).to_csv(folder / "prices.csv")
    return folder / "prices.csv"


def wide_parquet(table: pd.DataFrame, folder: Path) -> Path:
    closes = table.pivot(index="date", columns="symbol", values="close")
    closes.index.name = None
    closes.rename(columns={"LOW": "LLL"}).to_parquet(folder / "prices.parquet")
    return folder / "prices.parquet"


YFINANCE = "yfinance, 3 stocks (no dividends)"
DIALECTS = {
    "yfinance, several tickers": Written(yfinance_csv, ACTIONS, YFINANCE),
    "yfinance, by ticker": Written(yfinance_grouped_by_ticker, ACTIONS, YFINANCE),
    "yfinance, no labels": Written(yfinance_without_labels, ACTIONS, YFINANCE),
    "yfinance, parquet": Written(yfinance_parquet, ACTIONS, YFINANCE),
    "yfinance, one ticker": Written(yfinance_one_ticker, ACTIONS, "yfinance, 3 files"),
    "yfinance, history": Written(yfinance_history, (), ""),
    "Stooq": Written(stooq, ADJUSTED, "Stooq, 3 stocks"),
    "Stooq, folders": Written(stooq_folders, ADJUSTED, "Stooq, 3 files"),
    "Alpha Vantage": Written(alpha_vantage, (), "Alpha Vantage, 3 files"),
    "EODHD": Written(eodhd, ACTIONS, "EODHD, 3 files"),
    "Tiingo": Written(tiingo, (), "Tiingo, 3 files"),
    "Polygon": Written(polygon, ADJUSTED, "Polygon's flat files, 17 files"),
    "Nasdaq.com": Written(nasdaq, ADJUSTED, "Nasdaq.com, 3 files"),
    "Kaggle": Written(kaggle, ADJUSTED, "Kaggle's S&P 500, 3 stocks"),
    "Tushare": Written(tushare, ADJUSTED, "Tushare, 3 stocks"),
    "KRX": Written(krx, ADJUSTED, "KRX, 3 files"),
    "CRSP": Written(crsp, ADJUSTED, "CRSP, 3 stocks"),
}
