"""Names of people, companies and cities, for generated problems. Another order makes other problems."""

NAMES = ("Ada Alice Amir Anna Ben Bianca Carl Chloe Clara Daniel David Dora Elena Emil Emma Eric Eva Felix "
         "Finn Grace Hana Henry Ida Ivan Jack Jane Jonas Julia Kai Karen Leo Lily Lucas Maria Max Mia Nina "
         "Noah Olga Oscar Paul Peter Rosa Ruth Sam Sara Simon Theo Tom Vera Zoe").split()
SURNAMES = ("Adler Berg Blum Brandt Carver Dahl Ebert Falk Fischer Frost Graf Hahn Hale Hart Holm Jansen "
            "Keller Koch Lang Lind Lorenz Marsh Moser Nagel Olsen Pohl Quist Rask Reed Roth Sander Stone "
            "Strand Thorn Vance Vogel Wagner Weber Winter Wolf").split()
BRANDS = ("Amber Arctic Bright Cedar Copper Coral Crystal Eagle Falcon Golden Granite Harbor Indigo Iron "
          "Jade Lotus Lunar Maple Noble Ocean Onyx Orchid Pearl Polar Prime Rapid River Royal Ruby Sierra "
          "Silver Solar Star Summit Tiger Velvet Violet Willow Zenith Zephyr").split()
FIRMS = ("Bakery Bank Books Cargo Clinic Designs Energy Farms Films Foods Games Glass Hotels Labs Media "
         "Metals Motors Optics Paper Tools").split()
CITIES = ("Accra Athens Berlin Bern Bogota Boston Cairo Dakar Delhi Dublin Geneva Hanoi Havana Kyoto Lagos "
          "Lima Lisbon London Lyon Madrid Milan Nairobi Naples Oslo Paris Porto Prague Quito Riga Rome "
          "Seoul Sofia Sydney Tokyo Tunis Turin Vienna Vilnius Warsaw Zurich").split()
