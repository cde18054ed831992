"""Words for currencies, percentages and units, both languages, with Spanish genders."""

from __future__ import annotations

from dataclasses import dataclass

from .languages import Locale


@dataclass(frozen=True)
class Noun:
    """A unit in both languages, singular and plural. spaced: only after a space ("5 s", not "the 80s")."""

    en: tuple[str, str]
    es: tuple[str, str]
    gender: str = "m"
    spaced: bool = False
    american: tuple[str, str] | None = None

    def one(self, locale: Locale) -> str:
        return self._forms(locale)[0]

    def many(self, locale: Locale) -> str:
        return self._forms(locale)[1]

    def _forms(self, locale: Locale) -> tuple[str, str]:
        if locale.is_es:
            return self.american if self.american and locale.american else self.es
        if locale.british:
            return tuple(w.replace("meter", "metre").replace("liter", "litre") for w in self.en)  # type: ignore[return-value]
        return self.en


@dataclass(frozen=True)
class Currency:
    unit: Noun
    minor: Noun | None = None


def _noun(en: str, es: str, gender: str = "m", spaced: bool = False) -> Noun:
    """Make a Noun from "singular plural" with underscores for spaces inside."""

    def pair(text: str) -> tuple[str, str]:
        words = [w.replace("_", " ") for w in text.split()]
        return words[0], words[-1]

    return Noun(pair(en), pair(es), gender, spaced)


_CENT = Noun(("cent", "cents"), ("céntimo", "céntimos"), american=("centavo", "centavos"))
_CENTAVO = _noun("cent cents", "centavo centavos")
_DOLLAR = Currency(_noun("dollar dollars", "dólar dólares"), _CENTAVO)
_EURO = Currency(_noun("euro euros", "euro euros"), _CENT)
_POUND = Currency(_noun("pound pounds", "libra libras", "f"), _noun("penny pence", "penique peniques"))
_YEN = Currency(_noun("yen", "yen yenes"))


def _dollar(en: str, es: str) -> Currency:
    return Currency(_noun(f"{en}_dollar {en}_dollars", f"dólar_{es} dólares_{es}s"), _CENTAVO)


_US = Currency(_noun("U-S_dollar U-S_dollars", "dólar_estadounidense dólares_estadounidenses"), _CENTAVO)
CURRENCIES: dict[str, Currency] = {
    **{"$": _DOLLAR, "€": _EURO, "£": _POUND, "¥": _YEN},
    **{"US$": _US, "USD": _US, "EUR": _EURO, "GBP": _POUND, "JPY": _YEN},
    "C$": _dollar("Canadian", "canadiense"),
    "CAD": _dollar("Canadian", "canadiense"),
    "A$": _dollar("Australian", "australiano"),
    "AUD": _dollar("Australian", "australiano"),
    "HK$": Currency(_noun("Hong_Kong_dollar Hong_Kong_dollars", "dólar_de_Hong_Kong dólares_de_Hong_Kong")),
    "MXN": Currency(_noun("Mexican_peso Mexican_pesos", "peso_mexicano pesos_mexicanos"), _CENTAVO),
    "ARS": Currency(_noun("Argentine_peso Argentine_pesos", "peso_argentino pesos_argentinos"), _CENTAVO),
    "COP": Currency(_noun("Colombian_peso Colombian_pesos", "peso_colombiano pesos_colombianos"), _CENTAVO),
    "CLP": Currency(_noun("Chilean_peso Chilean_pesos", "peso_chileno pesos_chilenos")),
    "R$": Currency(_noun("real reais", "real reales"), _CENTAVO),
    "CHF": Currency(_noun("Swiss_franc Swiss_francs", "franco_suizo francos_suizos"), _CENT),
    "CNY": Currency(_noun("yuan", "yuan yuanes")),
    "₹": Currency(_noun("rupee rupees", "rupia rupias", "f")),
    "INR": Currency(_noun("rupee rupees", "rupia rupias", "f")),
    "₩": Currency(_noun("won", "won wones")),
    "₽": Currency(_noun("ruble rubles", "rublo rublos")),
    "₿": Currency(_noun("bitcoin bitcoins", "bitcóin bitcoines")),
    "BTC": Currency(_noun("bitcoin bitcoins", "bitcóin bitcoines")),
}

PERCENTS: dict[str, Noun] = {
    "%": _noun("percent", "por_ciento", "n"),
    "‰": _noun("per_mille", "por_mil", "n"),
    "pp": _noun("percentage_point percentage_points", "punto_porcentual puntos_porcentuales"),
    "p.p.": _noun("percentage_point percentage_points", "punto_porcentual puntos_porcentuales"),
    "bps": _noun("basis_point basis_points", "punto_básico puntos_básicos"),
    "bp": _noun("basis_point basis_points", "punto_básico puntos_básicos"),
    "pb": _noun("basis_point basis_points", "punto_básico puntos_básicos"),
}

_CELSIUS = _noun("degree_Celsius degrees_Celsius", "grado_Celsius grados_Celsius")
_FAHRENHEIT = _noun("degree_Fahrenheit degrees_Fahrenheit", "grado_Fahrenheit grados_Fahrenheit")
UNITS: dict[str, Noun] = {
    **{"°C": _CELSIUS, "ºC": _CELSIUS, "° C": _CELSIUS, "℃": _CELSIUS},
    **{"°F": _FAHRENHEIT, "ºF": _FAHRENHEIT, "° F": _FAHRENHEIT, "℉": _FAHRENHEIT},
    "°": _noun("degree degrees", "grado grados"),
    "km/h": _noun("kilometer_per_hour kilometers_per_hour", "kilómetro_por_hora kilómetros_por_hora"),
    "kph": _noun("kilometer_per_hour kilometers_per_hour", "kilómetro_por_hora kilómetros_por_hora"),
    "mph": _noun("mile_per_hour miles_per_hour", "milla_por_hora millas_por_hora", "f"),
    "m/s": _noun("meter_per_second meters_per_second", "metro_por_segundo metros_por_segundo"),
    "km": _noun("kilometer kilometers", "kilómetro kilómetros"),
    "cm": _noun("centimeter centimeters", "centímetro centímetros"),
    "mm": _noun("millimeter millimeters", "milímetro milímetros"),
    "m": _noun("meter meters", "metro metros"),
    "km²": _noun("square_kilometer square_kilometers", "kilómetro_cuadrado kilómetros_cuadrados"),
    "km2": _noun("square_kilometer square_kilometers", "kilómetro_cuadrado kilómetros_cuadrados"),
    "m²": _noun("square_meter square_meters", "metro_cuadrado metros_cuadrados"),
    "m2": _noun("square_meter square_meters", "metro_cuadrado metros_cuadrados"),
    "m³": _noun("cubic_meter cubic_meters", "metro_cúbico metros_cúbicos"),
    "m3": _noun("cubic_meter cubic_meters", "metro_cúbico metros_cúbicos"),
    "mi": _noun("mile miles", "milla millas", "f"),
    "ft": _noun("foot feet", "pie pies"),
    "yd": _noun("yard yards", "yarda yardas", "f"),
    "sq ft": _noun("square_foot square_feet", "pie_cuadrado pies_cuadrados"),
    "ha": _noun("hectare hectares", "hectárea hectáreas", "f"),
    "kg": _noun("kilogram kilograms", "kilo kilos"),
    "mg": _noun("milligram milligrams", "miligramo miligramos"),
    "g": _noun("gram grams", "gramo gramos", spaced=True),
    "t": _noun("tonne tonnes", "tonelada toneladas", "f", spaced=True),
    "lb": _noun("pound pounds", "libra libras", "f"),
    "lbs": _noun("pound pounds", "libra libras", "f"),
    "oz": _noun("ounce ounces", "onza onzas", "f"),
    "ml": _noun("milliliter milliliters", "mililitro mililitros"),
    "mL": _noun("milliliter milliliters", "mililitro mililitros"),
    "l": _noun("liter liters", "litro litros", spaced=True),
    "L": _noun("liter liters", "litro litros"),
    "kWh": _noun("kilowatt_hour kilowatt_hours", "kilovatio_hora kilovatios_hora"),
    "MWh": _noun("megawatt_hour megawatt_hours", "megavatio_hora megavatios_hora"),
    "GWh": _noun("gigawatt_hour gigawatt_hours", "gigavatio_hora gigavatios_hora"),
    "TWh": _noun("terawatt_hour terawatt_hours", "teravatio_hora teravatios_hora"),
    "kW": _noun("kilowatt kilowatts", "kilovatio kilovatios"),
    "MW": _noun("megawatt megawatts", "megavatio megavatios"),
    "GW": _noun("gigawatt gigawatts", "gigavatio gigavatios"),
    "W": _noun("watt watts", "vatio vatios"),
    "V": _noun("volt volts", "voltio voltios"),
    "Hz": _noun("hertz", "hercio hercios"),
    "kHz": _noun("kilohertz", "kilohercio kilohercios"),
    "MHz": _noun("megahertz", "megahercio megahercios"),
    "GHz": _noun("gigahertz", "gigahercio gigahercios"),
    "KB": _noun("kilobyte kilobytes", "kilobyte kilobytes"),
    "MB": _noun("megabyte megabytes", "megabyte megabytes"),
    "GB": _noun("gigabyte gigabytes", "gigabyte gigabytes"),
    "TB": _noun("terabyte terabytes", "terabyte terabytes"),
    "Mbps": _noun("megabit_per_second megabits_per_second", "megabit_por_segundo megabits_por_segundo"),
    "Gbps": _noun("gigabit_per_second gigabits_per_second", "gigabit_por_segundo gigabits_por_segundo"),
    "dB": _noun("decibel decibels", "decibelio decibelios"),
    "hPa": _noun("hectopascal hectopascals", "hectopascal hectopascales"),
    "ppm": _noun("part_per_million parts_per_million", "parte_por_millón partes_por_millón", "f"),
    "rpm": _noun(
        "revolution_per_minute revolutions_per_minute", "revolución_por_minuto revoluciones_por_minuto", "f"
    ),
    "bpm": _noun("beat_per_minute beats_per_minute", "latido_por_minuto latidos_por_minuto"),
    "fps": _noun("frame_per_second frames_per_second", "fotograma_por_segundo fotogramas_por_segundo"),
    "kcal": _noun("kilocalorie kilocalories", "kilocaloría kilocalorías", "f"),
    "h": _noun("hour hours", "hora horas", "f"),
    "hrs": _noun("hour hours", "hora horas", "f"),
    "min": _noun("minute minutes", "minuto minutos"),
    "ms": _noun("millisecond milliseconds", "milisegundo milisegundos"),
    "s": _noun("second seconds", "segundo segundos", spaced=True),
}

PER: dict[str, tuple[str, str]] = {
    "hour": ("per hour", "por hora"),
    "h": ("per hour", "por hora"),
    "day": ("per day", "por día"),
    "week": ("per week", "por semana"),
    "month": ("per month", "por mes"),
    "year": ("per year", "por año"),
    "yr": ("per year", "por año"),
    "hr": ("per hour", "por hora"),
    "wk": ("per week", "por semana"),
    "mo": ("per month", "por mes"),
    "lb": ("per pound", "por libra"),
    "km": ("per kilometer", "por kilómetro"),
    "night": ("per night", "por noche"),
    "person": ("per person", "por persona"),
    "barrel": ("per barrel", "por barril"),
    "gallon": ("per gallon", "por galón"),
    "share": ("per share", "por acción"),
    "kg": ("per kilogram", "por kilo"),
    "kWh": ("per kilowatt hour", "por kilovatio hora"),
    "MWh": ("per megawatt hour", "por megavatio hora"),
    "m²": ("per square meter", "por metro cuadrado"),
    "m2": ("per square meter", "por metro cuadrado"),
    "hora": ("per hour", "por hora"),
    "día": ("per day", "al día"),
    "mes": ("per month", "al mes"),
    "año": ("per year", "al año"),
    "persona": ("per person", "por persona"),
    "barril": ("per barrel", "por barril"),
    "litro": ("per liter", "por litro"),
}
